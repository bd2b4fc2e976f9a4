// SPDX-License-Identifier: Apache-2.0
#include "train.h"

#include <ronde/torch.h>

#include <cstdio>

#include "digits/digits.h"

namespace hybrid {
namespace {

constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.9;

torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(kLearningRate).momentum(kMomentum);
}

// Note [Gradients are sums]
// Where an operation has a collective in it, a rank's gradient is that of the sum of all ranks'
// losses. So each rank takes such a share of its loss that this sum is the loss L of the whole
// batch: with N ranks, L is the sum over the ranks of (mean over this rank's images) / N, as all
// groups have equally many images, and all ranks of a group compute the same mean.
//
// What is missing then is only that a parameter has copies. Its gradient is the sum of those of its
// copies: one on every rank for a shared parameter, one in every group for a split one.

class Trainer {
 public:
  Trainer(Net& net, ronde::ProcessSet copies_of_split)
      : net_(net),
        shared_sgd_(net->shared_parameters(), sgd_options()),
        split_sgd_(net->split_parameters(), sgd_options()),
        shared_(shared_sgd_, net->named_parameters(),
                {.name = "shared", .op = ronde::ReduceOp::Sum}),
        split_(split_sgd_, net->named_parameters(),
               {.name = "split", .op = ronde::ReduceOp::Sum, .process_set = copies_of_split}) {}

  /// Returns the loss of the whole batch.
  double step(const torch::data::Example<>& batch) {
    shared_.zero_grad();
    split_.zero_grad();
    const torch::Tensor loss = torch::cross_entropy_loss(net_->forward(batch.data), batch.target);
    (loss / ronde::size()).backward();  // see Note [Gradients are sums]
    shared_.step();
    split_.step();
    return ronde::allreduce(loss.detach(), {.name = "loss"}).item<double>();
  }

 private:
  Net& net_;
  torch::optim::SGD shared_sgd_;
  torch::optim::SGD split_sgd_;
  ronde::DistributedOptimizer shared_;
  ronde::DistributedOptimizer split_;
};

/// Of the held-out digits; all groups look at all of them.
double percent_read_right(Net& net, const torch::data::Example<>& digits) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor right = net->forward(digits.data).argmax(1) == digits.target;
  return 100 * right.to(torch::kFloat64).mean().item<double>();
}

}  // namespace

std::vector<double> train(Net& net, const ronde::Grid& grid, const Options& options) {
  const example::DigitSets digits = example::read_digits();
  const torch::data::Example<> held_out = digits.test.part(0, 1);
  const ronde::ProcessSet groups = grid.set(kData);
  // All ranks of a group have the same place in `groups`, and so get the same images.
  const ronde::DistributedSampler sampler(digits.train.size().value(),
                                          {.seed = options.seed, .process_set = groups});
  const auto loader = torch::data::make_data_loader(
      digits.train, sampler, static_cast<std::size_t>(options.batch / grid.size(kData)));

  Trainer trainer(net, groups);
  std::vector<double> losses;
  for (std::int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    for (const auto& batch : *loader) losses.push_back(trainer.step(batch));
    const double right = percent_read_right(net, held_out);
    if (ronde::rank() == 0) {
      std::printf(
          "epoch %2lld: loss of the last step %.6f, %.1f %% of the unseen digits read right\n",
          static_cast<long long>(epoch), losses.back(), right);
    }
  }
  return losses;
}

}  // namespace hybrid

// SPDX-License-Identifier: Apache-2.0
#include <ronde/torch.h>

#include <cstdio>
#include <string_view>

#include "digits.h"  // the data set

constexpr int kEpochs = 10;
constexpr int kBatch = 48;  // of all ranks together

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(16, 32, 3).padding(1)), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(32 * 2 * 2, 10));
}

torch::Tensor share_read_right(torch::nn::Sequential net, const torch::data::Example<>& digits) {
  const torch::NoGradGuard no_grad;
  return (net->forward(digits.data).argmax(1) == digits.target).to(torch::kDouble).mean();
}

void learn() {
  const int rank = ronde::rank();
  const int ranks = ronde::size();
  const auto [train, test] = example::read_digits();  // 1440 images to learn from, 357 others
  const auto my_test = test.part(rank, ranks);

  torch::manual_seed(1);
  torch::nn::Sequential net = make_net();
  net->to(torch::kDouble);  // 1, 2, 3, 4 or 6 ranks print the same figures
  torch::optim::Adam adam(net->parameters(), 3e-3);
  ronde::DistributedOptimizer optimizer(adam, net->named_parameters());
  ronde::broadcast_parameters(*net, /*root_rank=*/0);

  ronde::DistributedSampler sampler(*train.size(), {.seed = 1});  // deals the images out
  const auto loader = torch::data::make_data_loader(train, sampler, (kBatch + ranks - 1) / ranks);
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    ronde::MetricAverage metrics;
    for (const auto& batch : *loader) {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::cross_entropy_loss(net->forward(batch.data), batch.target);
      loss.backward();   // gradients travel meanwhile
      optimizer.step();  // waits for them, then steps
      metrics.add("loss", loss, double(batch.target.size(0)));
    }
    metrics.add("right", share_read_right(net, my_test), double(my_test.target.size(0)));
    auto mean = metrics.average();  // over all images of all ranks
    if (rank == 0) {
      std::printf("epoch %2d: loss %.4f, %.1f %% of the unseen digits read right\n", epoch,
                  mean["loss"], 100 * mean["right"]);
    }
  }
  ronde::check_replicas(*net);  // throws where a parameter differs
  if (rank == 0) std::printf("%d ranks, equal to the last bit\n", ranks);
}

int main(int argc, char** argv) {
  if (argc > 1) {
    std::puts("digits: learns to read handwritten digits, alone or under mpiexec; no options");
    return std::string_view(argv[1]) == "--help" ? 0 : 2;
  }
  return ronde::main(learn);  // an error of one rank ends all, with its reason
}

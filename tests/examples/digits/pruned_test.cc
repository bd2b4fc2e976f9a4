// SPDX-License-Identifier: Apache-2.0
// Trains the network of the digits dense, prunes it and trains on, beside one that stays dense.
// Prints the table of docs/notes/samo.md.
#include "tests/examples/digits/training.h"

#include <cstdio>

namespace digits_test::pruned_test {
namespace {

constexpr int kSeeds = 5;
constexpr int kEpochsBefore = 8;  // pruning
constexpr int kEpochsAfter = 12;
constexpr double kRate = 0.01;

void train(torch::nn::Sequential& net, torch::optim::Optimizer& inner,
           const torch::OrderedDict<std::string, at::Tensor>& names, std::uint64_t seed,
           int epochs) {
  ronde::DistributedOptimizer optimizer(inner, names);
  const ronde::DistributedSampler sampler(*data().train.size(), {.seed = seed});
  const auto loader = make_loader(sampler, kBatch / ronde::size());
  for (int epoch = 0; epoch < epochs; ++epoch) train_epoch(net, optimizer, *loader);
}

/// The shares of right answers: dense, just pruned, and both after as many epochs more.
at::Tensor shares_right(std::uint64_t seed) {
  torch::manual_seed(seed);
  torch::nn::Sequential dense = make_net();
  ronde::broadcast_parameters(*dense, 0);
  torch::optim::Adam adam(dense->parameters(), kRate);
  train(dense, adam, dense->named_parameters(), seed, kEpochsBefore);
  torch::nn::Sequential pruned = make_net();
  const std::string bytes = ronde::save_bytes(dense);
  ronde::load_bytes(pruned, bytes);
  const double before = share_right(dense);
  train(dense, adam, dense->named_parameters(), seed + kSeeds, kEpochsAfter);
  const auto masks = ronde::magnitude_masks(pruned->named_parameters(), 0.8);
  ronde::PrunedOptimizer<torch::optim::Adam> pruned_adam(pruned->named_parameters(), masks,
                                                         torch::optim::AdamOptions(kRate));
  const double at_once = share_right(pruned);
  train(pruned, pruned_adam, pruned_adam.leaves(), seed + kSeeds, kEpochsAfter);
  std::int64_t nonzero = 0;
  for (const auto& mask : masks) {
    nonzero += pruned->named_parameters()[mask.key()].count_nonzero().item<std::int64_t>();
  }
  CHECK(nonzero <= (144 + 4608 + 1280) / 5 + 1);
  return at::tensor({before, at_once, share_right(dense), share_right(pruned)}, at::kDouble);
}

}  // namespace

TEST_CASE("the digits are read as well by a fifth of the weights", "[n2]") {
  ronde_test::use_ronde();
  std::vector<at::Tensor> all;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    all.push_back(shares_right(static_cast<std::uint64_t>(seed)));
  }
  const at::Tensor mean = at::stack(all).mean(0) * 100;
  const auto percent = [&](int column) { return mean[column].item<double>(); };
  if (ronde::rank() == 0) {
    std::printf("| dense, after %d epochs | %.2f %% |\n", kEpochsBefore, percent(0));
    std::printf("| pruned by 80 %% | %.2f %% |\n", percent(1));
    std::printf("| dense, after %d epochs more | %.2f %% |\n", kEpochsAfter, percent(2));
    std::printf("| pruned, after %d epochs more | %.2f %% |\n", kEpochsAfter, percent(3));
  }
  CHECK(percent(3) > percent(2) - 0.5);
}

}  // namespace digits_test::pruned_test

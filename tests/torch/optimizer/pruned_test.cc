// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/support.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdio>

#include "tests/torch/toy.h"

namespace ronde_test::pruned_test {
namespace {

using ronde::magnitude_masks;
using PrunedAdam = ronde::PrunedOptimizer<torch::optim::Adam>;

constexpr double kRate = 0.02;

/// LibTorch's Adam on the dense model, with gradients and weights multiplied by the masks.
void train_masked(Regression& toy, const Names& masks, int steps) {
  torch::optim::Adam adam(toy.parameters(), kRate);
  const auto multiply = [&](const auto& tensor_of) {
    const at::NoGradGuard no_grad;
    for (const auto& mask : masks) tensor_of(toy.names()[mask.key()]).mul_(mask.value());
  };
  multiply([](const at::Tensor& parameter) { return parameter.detach(); });
  for (int step = 0; step < steps; ++step) {
    adam.zero_grad();
    toy.whole_loss(step).backward();
    multiply([](const at::Tensor& parameter) { return parameter.grad(); });
    adam.step();
  }
}

/// Counts the bytes that LibTorch's allocator for the CPU has given out on this thread.
class Allocations : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t change, std::size_t, std::size_t,
                         c10::Device) override {
    live += change;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t live = 0;
  std::int64_t peak = 0;
};

struct Memory {
  double live = 0;  // after a step, with its gradients
  double peak = 0;
};

constexpr std::int64_t kWidth = 512;
constexpr std::int64_t kLayers = 4;

/// Trains a perceptron for two steps, in f32 with Adam. `pruned`: less than 0 trains it dense.
Memory memory_of_training(double pruned) {
  const auto allocations = std::make_shared<Allocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int layer = 0; layer < kLayers; ++layer) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  const auto train = [&](torch::optim::Optimizer& inner, const Names& names) {
    DistributedOptimizer optimizer(inner, names, {.gradient_views = false});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      net->forward(at::ones({1, kWidth})).sum().backward();
      optimizer.step();
    }
    return Memory{static_cast<double>(allocations->live), static_cast<double>(allocations->peak)};
  };
  if (pruned < 0) {
    torch::optim::Adam adam(net->parameters(), kRate);
    return train(adam, net->named_parameters());
  }
  PrunedAdam adam(net->named_parameters(), magnitude_masks(net->named_parameters(), pruned),
                  torch::optim::AdamOptions(kRate));
  allocations->peak = 0;  // magnitude_masks sorts all weights
  return train(adam, adam.leaves());
}

}  // namespace

TEST_CASE("a pruned model trains as the dense one whose gradients are masked") {
  constexpr int kSteps = 60;
  Regression reference;
  const Names masks = magnitude_masks(reference.names(), 0.6);
  train_masked(reference, masks, kSteps);
  Regression toy;
  PrunedAdam adam(toy.names(), masks, torch::optim::AdamOptions(kRate));
  DistributedOptimizer optimizer(
      adam, adam.leaves(), {.backward_passes_per_step = 2, .average_aggregated_gradients = true});
  const double first = toy.whole_loss(0).item<double>();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < 2; ++pass) toy.loss(step).backward();
    optimizer.step();
  }
  CHECK(near(flatten(toy.parameters()), flatten(reference.parameters()), 1e-9));
  CHECK(toy.whole_loss(0).item<double>() < first / 2);
  for (const auto& mask : masks) {
    const at::Tensor parameter = toy.names()[mask.key()].detach();
    CHECK(adam.leaves()[mask.key()].numel() == mask.value().sum().item<std::int64_t>());
    CHECK(torch::equal(parameter != 0, mask.value()));
  }
}

TEST_CASE("masks keep the largest weights of all layers", "[n2]") {
  const Names names = {{"a", torch::tensor({{1.0, -9.0}, {3.0, 0.5}}).requires_grad_()},
                       {"bias", at::ones({2}).requires_grad_()},
                       {"b", torch::tensor({{-4.0, 2.0}}).requires_grad_()}};
  const Names masks = magnitude_masks(names, 0.5);
  CHECK(masks.size() == 2);
  CHECK(torch::equal(masks["a"], torch::tensor({{0, 1}, {1, 0}}).to(at::kBool)));
  CHECK(torch::equal(masks["b"], torch::tensor({{1, 0}}).to(at::kBool)));
}

TEST_CASE("the kept gradients alone are sent", "[n2]") {
  const auto sent = [](double pruned) {
    Regression toy(at::kFloat);
    PrunedAdam adam(toy.names(), magnitude_masks(toy.names(), pruned),
                    torch::optim::AdamOptions(kRate));
    DistributedOptimizer optimizer(adam, adam.leaves(), {.gradient_views = false});
    std::uint64_t bytes = 0;
    for (int step = 0; step < 2; ++step) {  // in the first the ranks compare parameters, too
      const std::uint64_t before = counted("execution", "bytes");
      optimizer.zero_grad();
      toy.loss(step).backward();
      optimizer.step();
      bytes = counted("execution", "bytes") - before;
    }
    return bytes;
  };
  // Weights of 4 x 8 and 8 x 2, biases of 8 and 2.
  CHECK(sent(0) == 4 * (48 + 10));
  CHECK(sent(0.75) == 4 * (12 + 10));
}

TEST_CASE("a pruned model takes the memory of its formula", "[n2]") {
  constexpr double kWeights = kLayers * kWidth * kWidth;
  const double dense = memory_of_training(-1).live;
  CHECK(std::fabs(dense / (16 * kWeights) - 1) < 0.02);
  for (const double pruned : {0.8, 0.9}) {
    const double kept = (1 - pruned) * kWeights;
    const double formula = 4 * kWeights + 20 * kept;
    const Memory memory = memory_of_training(pruned);
    if (ronde::rank() == 0) {
      const double mixed = (2 * kWeights + 24 * kept) / (20 * kWeights);
      std::printf(
          "pruned by %.0f %%: %.3f MB, formula %.3f, dense %.3f: %.1f %% less; "
          "peak %.3f; in mixed precision by the study's formula %.1f %% less\n",
          100 * pruned, memory.live / 1e6, formula / 1e6, dense / 1e6,
          100 * (1 - memory.live / dense), memory.peak / 1e6, 100 * (1 - mixed));
    }
    CHECK(std::fabs(memory.live / formula - 1) < 0.02);
    // Backward holds the dense gradient of a layer at a time.
    CHECK(memory.peak < formula + 1.5 * 4 * kWidth * kWidth);
  }
}

TEST_CASE("ranks whose masks differ are named") {
  Regression toy;
  Names masks = magnitude_masks(toy.names(), 0.5);
  const auto make = [&] { PrunedAdam(toy.names(), masks, torch::optim::AdamOptions(kRate)); };
  if (ronde::rank() == 1) masks["0.weight"] = masks["0.weight"].roll(1);
  if (ronde::size() == 1) return make();
  const std::string text =
      check_refused(make, {"ronde::PrunedOptimizer", "rank 1", "mask of 0.weight"});
  CHECK(same_on_all_ranks(text));
  CHECK(toy.names()["0.weight"].is_leaf());
}

TEST_CASE("what the program writes into pruned parameters is taken over") {
  Regression toy;
  const Names masks = magnitude_masks(toy.names(), 0.5);
  PrunedAdam adam(toy.names(), masks, torch::optim::AdamOptions(kRate));
  const auto step = [&](int number) {
    adam.zero_grad();
    toy.whole_loss(number).backward();
    adam.step();
    return flatten(toy.parameters()).clone();
  };
  step(0);
  const std::string net_bytes = ronde::save_bytes(toy.net);
  const std::string adam_bytes = ronde::save_bytes(adam);
  const at::Tensor unbroken = step(1);
  step(2);
  ronde::load_bytes(toy.net, net_bytes);
  ronde::load_bytes(adam, adam_bytes);
  CHECK(same_bits(step(1), unbroken));
  const at::Tensor weight = toy.names()["0.weight"].detach();
  weight.fill_(5);
  adam.zero_grad();
  adam.step();  // no gradient: Adam leaves the leaves as they are
  CHECK(torch::equal(weight, 5 * masks["0.weight"].to(at::kDouble)));
}

TEST_CASE("masks and options that cannot work are refused", "[n2]") {
  Regression toy;
  const Names good = magnitude_masks(toy.names(), 0.5);
  const auto refused = [&](const std::string& name, const at::Tensor& mask, const char* text) {
    check_refused(
        [&] {
          PrunedAdam(toy.names(), {{name, mask}}, torch::optim::AdamOptions(kRate));
        },
        {"ronde::PrunedOptimizer", text});
  };
  refused("7.weight", good["0.weight"], "of no parameter");
  refused("0.weight", good["2.weight"], "Give bools in the shape");
  refused("0.weight", good["0.weight"].to(at::kFloat), "Give bools in the shape");
  toy.names()["0.weight"].requires_grad_(false);
  refused("0.weight", good["0.weight"], "frozen");
  toy.names()["0.weight"].requires_grad_(true);
  check_refused([&] { magnitude_masks(toy.names(), 1.5); }, {"from 0 to 1"});
  PrunedAdam adam(toy.names(), good, torch::optim::AdamOptions(kRate));
  refused("0.weight", good["0.weight"], "in a PrunedOptimizer already");
  check_refused([&] { DistributedOptimizer(adam, adam.leaves(), {.op = ReduceOp::Adasum}); },
                {"adasum_of_deltas"});
  check_refused([&] { DistributedOptimizer(adam, toy.names()); }, {"not in named_parameters"});
}

}  // namespace ronde_test::pruned_test

// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, against the whole model in one process without Ronde.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>
// LibTorch defines a CHECK of its own; in the tests it is Catch2's.
#undef CHECK
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using Catch::Contains;
using namespace ronde::test;

constexpr int kLayers = 12;
constexpr int kWidth = 16;
constexpr int kBatch = 96;
constexpr int kSteps = 10;

/// The losses of training on whole batches; the gradients of `parts` of each are added up one after
/// the other.
std::vector<double> plain_losses(int parts) {
  torch::manual_seed(1);
  std::vector<torch::nn::Linear> layers;
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < kLayers; ++i) {
    layers.emplace_back(kWidth, kWidth);
    layers.back()->to(torch::kFloat64);
    parameters.insert(parameters.end(), {layers.back()->weight, layers.back()->bias});
  }
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(1.0).momentum(0.9));
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor inputs = torch::randn({kBatch, kWidth}, random, torch::kFloat64);
    const torch::Tensor targets = inputs.abs();
    sgd.zero_grad();
    losses.push_back(0);
    for (int part = 0; part < parts; ++part) {
      torch::Tensor x = inputs.chunk(parts)[std::size_t(part)];
      for (torch::nn::Linear& layer : layers) x = x + (1 / double(kLayers)) * torch::relu(layer(x));
      const torch::Tensor wrong = x - targets.chunk(parts)[std::size_t(part)];
      const torch::Tensor loss = wrong.square().sum() / double(kBatch * kWidth);
      loss.backward();
      losses.back() += loss.item<double>();
    }
    sgd.step();
  }
  return losses;
}

struct Layout {
  int ranks;
  int stages;
  int micro_batches;
};

/// Returns the losses of each step.
std::vector<double> losses_of(const Layout& layout, const std::string& schedule, int slow = 1) {
  const auto& [ranks, stages, micro_batches] = layout;
  const TemporaryFolder folder;
  const std::string file = folder / "losses.csv";
  Words words = {"--schedule", schedule, "--losses", file};
  for (const auto& [option, number] : std::map<std::string, int>{{"--stages", stages},
                                                                 {"--micro-batches", micro_batches},
                                                                 {"--layers", kLayers},
                                                                 {"--width", kWidth},
                                                                 {"--batch", kBatch},
                                                                 {"--steps", kSteps},
                                                                 {"--slow", slow}}) {
    words.insert(words.end(), {option, std::to_string(number)});
  }
  const std::string grid = std::to_string(ranks / stages) + " x " + std::to_string(stages);
  CHECK_THAT(launch_well(ranks, words),
             Contains("grid " + grid + ":") &&
                 Contains("all copies of a stage are equal to the last bit"));
  return read_numbers(file);
}

}  // namespace

TEST_CASE("one pipeline has the losses of one process with its micro-batches, to the last bit") {
  torch::set_num_threads(1);
  const std::vector<double> expected = plain_losses(4);
  CHECK(expected.back() < 0.9 * expected.front());
  for (const int ranks : {2, 4}) {
    INFO(ranks << " ranks");
    CHECK(losses_of({ranks, ranks, 4}, "1f1b") == expected);
  }
}

TEST_CASE("pipelines and copies of the model have the losses of one process with all batches") {
  const auto [layout, schedule, slow] = GENERATE(table<Layout, std::string, int>({
      {{2, 1, 3}, "1f1b", 1},
      {{4, 2, 6}, "1f1b", 1},
      {{2, 2, 1}, "gems", 1},
      {{3, 3, 4}, "gems", 1},  // both copies have their middle stage on one rank
      {{4, 2, 6}, "gems", 1},
      {{2, 2, 8}, "message-driven", 9},
      {{3, 3, 4}, "message-driven", 9},
  }));
  INFO(schedule << " on " << layout.ranks << " ranks, " << layout.stages << " stages");
  check_near(losses_of(layout, schedule, slow), plain_losses(1));
}

TEST_CASE("what cannot be divided among the ranks is refused with the reason, once") {
  check_refused_once(2, {"--stages", "3"},
                     "pipeline: --stages: the 2 ranks cannot be divided into groups of 3");
  check_refused_once(2, {"--layers", "7"}, "pipeline: --layers: 7 is not divisible by 2");
  check_refused_once(2, {"--schedule", "gems", "--batch", "100"},
                     "pipeline: --batch: 100 is not divisible by 8");
  check_refused_once(2, {"--schedule", "gpipe"}, "pipeline: --schedule");
}

TEST_CASE("ranks that were given other samples are told so") {
  CHECK_THAT(launch_pair_badly({"--seed", "1"}, {"--seed", "2"}),
             Contains("pipeline: --batch, --steps, --seed: they must be equal on all ranks"));
}

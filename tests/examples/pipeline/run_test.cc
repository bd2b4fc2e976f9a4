// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, against the whole model in one process without Ronde.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>
// LibTorch defines a CHECK of its own; in the tests it is Catch2's.
#undef CHECK
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using Catch::Contains;
using namespace ronde::test;

constexpr int kLayers = 12;
constexpr int kWidth = 16;
constexpr int kBatch = 96;

/// The losses of training on whole batches; the gradients of `parts` of each are added up one after
/// the other.
std::vector<double> plain_losses(int steps, int parts) {
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
  for (int step = 0; step < steps; ++step) {
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

Words with(const std::string& schedule, int stages, int micro_batches, const Words& more) {
  Words words = {"--schedule",           schedule,          "--stages",
                 std::to_string(stages), "--micro-batches", std::to_string(micro_batches)};
  const std::vector<std::pair<std::string, int>> sizes = {
      {"--layers", kLayers}, {"--width", kWidth}, {"--batch", kBatch}};
  for (const auto& [option, size] : sizes)
    words.insert(words.end(), {option, std::to_string(size)});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Layout {
  int ranks;
  int stages;
  int micro_batches;
};

/// Compares the losses of each step with those of one process with whole batches.
void check_layouts(const std::string& schedule, const std::vector<Layout>& layouts,
                   const Words& more = {}) {
  const TemporaryFolder folder;
  const std::string file = folder / "losses.csv";
  const std::vector<double> expected = plain_losses(10, 1);
  for (const auto& [ranks, stages, micro_batches] : layouts) {
    INFO(schedule << " on " << ranks << " ranks, " << stages << " stages");
    Words words = with(schedule, stages, micro_batches, {"--steps", "10", "--losses", file});
    words.insert(words.end(), more.begin(), more.end());
    const std::string text = launch_well(ranks, words);
    check_near(read_numbers(file), expected);
    const std::string grid = std::to_string(ranks / stages) + " x " + std::to_string(stages);
    CHECK_THAT(text, Contains("grid " + grid + ":") &&
                         Contains("all copies of a stage are equal to the last bit"));
  }
}

}  // namespace

TEST_CASE("one pipeline has the losses of one process with its micro-batches, to the last bit") {
  torch::set_num_threads(1);
  const TemporaryFolder folder;
  const std::string file = folder / "losses.csv";
  const std::vector<double> expected = plain_losses(10, 4);
  CHECK(expected.back() < 0.9 * expected.front());
  for (const int ranks : {2, 3, 4}) {
    INFO(ranks << " ranks");
    launch_well(ranks, with("1f1b", ranks, 4, {"--steps", "10", "--losses", file}));
    CHECK(read_numbers(file) == expected);
  }
}

TEST_CASE("pipelines beside each other have the losses of one process") {
  check_layouts("1f1b", {{2, 1, 3}, {4, 2, 6}});
}

TEST_CASE("copies in opposite directions have the losses of one process with the batches of both") {
  check_layouts("gems", {{1, 1, 2}, {2, 2, 1}, {3, 3, 4}, {4, 2, 6}, {4, 4, 3}});
}

TEST_CASE("message-driven passes have the losses of one process, also behind a slow stage") {
  check_layouts("message-driven", {{2, 2, 8}, {3, 3, 4}, {4, 2, 6}}, {"--slow", "9"});
}

TEST_CASE("what cannot be divided among the ranks is refused with the reason, once") {
  check_refused_once(2, {"--stages", "3"},
                     "pipeline: --stages: the 2 ranks cannot be divided into pipelines of 3");
  check_refused_once(2, {"--layers", "7"}, "pipeline: --layers: 7 is not divisible by 2");
  check_refused_once(2, {"--batch", "90"}, "pipeline: --batch: 90 is not divisible by 4");
  check_refused_once(2, {"--schedule", "gems", "--batch", "100"},
                     "pipeline: --batch: 100 is not divisible by 8");
  check_refused_once(2, {"--micro-batches", "-1"}, "pipeline: --micro-batches");
  check_refused_once(2, {"--schedule", "gpipe"}, "pipeline: --schedule");
}

TEST_CASE("ranks that were given other samples are told so") {
  CHECK_THAT(launch_pair_badly({"--seed", "1"}, {"--seed", "2"}),
             Contains("pipeline: --batch, --steps, --seed: they must be equal on all ranks"));
}

// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, against the model that is not split, in one process without Ronde.
#include <ronde/torch/distributed_sampler.h>
#include <torch/torch.h>
// LibTorch defines a CHECK of its own; in the tests it is Catch2's.
#undef CHECK
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "digits/digits.h"
#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using Catch::Contains;
using namespace ronde::test;

constexpr int kHidden = 240;

/// The unsplit model.
struct Plain {
  torch::nn::Linear first{64, 64};
  torch::nn::Linear widen{64, kHidden};
  torch::nn::Linear narrow{kHidden, 64};
  torch::nn::Linear last{64, 10};

  std::vector<torch::nn::Linear> layers() const { return {first, widen, narrow, last}; }

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor x = torch::relu(first(images.flatten(1)));
    return last(torch::relu(x + narrow(torch::relu(widen(x)))));
  }
};

/// The losses of its training on whole batches.
std::vector<double> plain_losses(int epochs) {
  torch::manual_seed(1);
  Plain net;
  std::vector<torch::Tensor> parameters;
  for (torch::nn::Linear layer : net.layers()) {
    layer->to(torch::kFloat64);
    parameters.insert(parameters.end(), {layer->weight, layer->bias});
  }
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  const example::Digits digits = example::read_digits().train;
  const ronde::DistributedSampler order(1440, {.seed = 1, .rank = 0, .size = 1});
  const auto loader = torch::data::make_data_loader(digits, order, 48);
  std::vector<double> losses;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& batch : *loader) {
      sgd.zero_grad();
      const torch::Tensor loss = torch::cross_entropy_loss(net.forward(batch.data), batch.target);
      loss.backward();
      sgd.step();
      losses.push_back(loss.item<double>());
    }
  }
  return losses;
}

}  // namespace

TEST_CASE("on every grid of one to four ranks each step's loss is the unsplit model's") {
  const TemporaryFolder folder;
  const std::string file = folder / "losses.csv";
  const std::vector<double> expected = plain_losses(2);
  REQUIRE(expected.size() == 60);
  CHECK(expected.back() < expected.front() / 2);
  struct Layout {
    int ranks;
    int split;
  };
  for (const auto& [ranks, parts] : {Layout{1, 1}, Layout{2, 1}, Layout{2, 2}, Layout{3, 1},
                                     Layout{3, 3}, Layout{4, 1}, Layout{4, 2}, Layout{4, 4}}) {
    const std::string groups = std::to_string(ranks / parts);
    const std::string split = std::to_string(parts);
    INFO("grid " << groups << " x " << split);
    const std::string text =
        launch_well(ranks, {"--split", split, "--epochs", "2", "--losses", file});
    check_near(read_numbers(file), expected);
    // 64 x 240 + 240 + 240 x 64 parameters are split, 64 x 64 + 64 + 64 + 64 x 10 + 10 are not.
    CHECK_THAT(text, Contains("grid " + groups + " x " + split + ":") &&
                         Contains("a rank holds " + std::to_string(30960 / parts + 4874) +
                                  " of 35834 parameters") &&
                         Contains("all copies of a parameter are equal to the last bit"));
  }
}

TEST_CASE("what cannot be divided among the ranks is refused with the reason, once") {
  check_refused_once(2, {"--split", "3"},
                     "hybrid: --split: the 2 ranks cannot be divided into groups of 3");
  check_refused_once(2, {"--split", "2", "--hidden", "7"},
                     "hybrid: --hidden: 7 is not divisible by 2");
  check_refused_once(2, {"--split", "1", "--batch", "47"},
                     "hybrid: --batch: 47 is not divisible by 2");
  check_refused_once(2, {"--split", "0"}, "hybrid: --split");
}

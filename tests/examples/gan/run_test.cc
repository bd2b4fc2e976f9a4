// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, against one process without Ronde.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>
// LibTorch defines a CHECK of its own; in the tests it is Catch2's.
#undef CHECK
#include <catch2/catch.hpp>
#include <cmath>
#include <regex>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using Catch::Contains;
using namespace ronde::test;
using torch::nn::Sequential;

Sequential make_network(std::int64_t outputs) {
  using namespace torch::nn;
  Sequential network(Linear(2, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, outputs));
  network->to(torch::kFloat64);
  return network;
}

torch::optim::Adam make_adam(const Sequential& network) {
  const auto options = torch::optim::AdamOptions(1e-3).betas(std::make_tuple(0.5, 0.999));
  return torch::optim::Adam(network->parameters(), options);
}

/// Points of eight clouds.
torch::Tensor ring(std::int64_t points, const at::Generator& random) {
  const torch::Tensor clouds = torch::randint(8, {points}, random, torch::kInt64);
  const torch::Tensor offsets = torch::randn({points, 2}, random, torch::kFloat64);
  const torch::Tensor angles = M_PI / 4 * clouds.to(torch::kFloat64);
  return 2 * torch::stack({angles.cos(), angles.sin()}, 1) + 0.1 * offsets;
}

/// -log of the probability of being real, and of being made.
torch::Tensor as_real(const torch::Tensor& scores) {
  return torch::softplus(-scores).mean();
}
torch::Tensor as_made(const torch::Tensor& scores) {
  return torch::softplus(scores).mean();
}

/// The losses of both on whole batches, in turn.
std::vector<double> plain_losses(int steps, std::int64_t batch) {
  torch::manual_seed(1);
  Sequential generator = make_network(2);
  Sequential discriminator = make_network(1);
  torch::optim::Adam generator_adam = make_adam(generator);
  torch::optim::Adam discriminator_adam = make_adam(discriminator);
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor real = ring(batch, random);
    const torch::Tensor made =
        generator->forward(torch::randn({batch, 2}, random, torch::kFloat64));
    discriminator_adam.zero_grad();
    const torch::Tensor first =
        as_real(discriminator->forward(real)) + as_made(discriminator->forward(made.detach()));
    first.backward();
    discriminator_adam.step();
    generator_adam.zero_grad();
    const torch::Tensor second = as_real(discriminator->forward(made));
    second.backward();
    generator_adam.step();
    losses.insert(losses.end(), {first.item<double>(), second.item<double>()});
  }
  return losses;
}

}  // namespace

TEST_CASE("on one to four ranks the losses are those of one process with whole batches") {
  const TemporaryFolder folder;
  const std::string file = folder / "losses.csv";
  const std::vector<double> expected = plain_losses(50, 120);
  for (const int ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    const std::string text =
        launch_well(ranks, {"--steps", "50", "--batch", "120", "--losses", file});
    check_near(read_numbers(file), expected);
    CHECK_THAT(text,
               Contains(std::to_string(ranks) + " ranks hold the same networks to the last bit"));
  }
}

TEST_CASE("two ranks learn all clouds") {
  const std::string text = launch_well(2, {});
  INFO(text);
  std::smatch last;
  REQUIRE(std::regex_search(
      text, last,
      std::regex(R"(step 1500: .*, (\d) of 8 clouds, ([\d.]+) % of the points in one)")));
  CHECK(last[1] == "8");
  CHECK(std::stod(last[2]) > 60);
}

TEST_CASE("a batch that cannot be divided among the ranks is refused, once") {
  check_refused_once(2, {"--batch", "7"}, "gan: --batch: 7 is not divisible by 2");
}

// SPDX-License-Identifier: Apache-2.0
// A generator and a discriminator, each with an optimizer of its own, on points of the plane in
// clouds around a circle: a generator that has learned a few clouds only is easily found out.
#include <ATen/CPUGeneratorImpl.h>
#include <ronde/torch.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "common/files.h"
#include "common/program.h"

namespace gan {
namespace {

constexpr std::int64_t kClouds = 8;
constexpr double kRadius = 2;    // of the circle
constexpr double kSpread = 0.1;  // standard deviation of a cloud, in both directions
constexpr std::int64_t kNoise = 2;
constexpr std::int64_t kUnits = 64;
constexpr std::int64_t kReportSteps = 250;
constexpr std::int64_t kReportPoints = 2000;
/// A cloud counts as learned with a tenth of the points that an even division would give it.
constexpr std::int64_t kFewestPoints = kReportPoints / kClouds / 10;

struct Options {
  std::int64_t steps = 1500;
  std::int64_t batch = 240;
  std::uint64_t seed = 1;
  std::filesystem::path losses;
};

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a generator and a discriminator on points in eight clouds around a circle. Start it "
      "with mpiexec for several ranks; they divide each batch.",
      "gan");
  Options options;
  app.add_option("--steps", options.steps, "How many, of each of the two networks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Points of a step, of all ranks together")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first weights, of the points and of the noise")
      ->capture_default_str();
  app.add_option("--losses", options.losses,
                 "Write a line for each step to this file: the losses of discriminator and "
                 "generator");
  example::parse_command_line(app, argc, argv);
  return options;
}

torch::Tensor cloud_centers() {
  const torch::Tensor angles = torch::arange(kClouds, torch::kFloat64) * (2 * M_PI / kClouds);
  return kRadius * torch::stack({angles.cos(), angles.sin()}, 1);
}

/// Draws points, each of a cloud chosen at random: [points, 2].
torch::Tensor draw_points(std::int64_t points, const at::Generator& random) {
  const torch::Tensor clouds = torch::randint(kClouds, {points}, random, torch::kInt64);
  const torch::Tensor offsets = torch::randn({points, 2}, random, torch::kFloat64);
  return cloud_centers().index_select(0, clouds) + kSpread * offsets;
}

torch::Tensor draw_noise(std::int64_t points, const at::Generator& random) {
  return torch::randn({points, kNoise}, random, torch::kFloat64);
}

/// Returns this rank's rows of a tensor that is equal on all ranks.
torch::Tensor own_rows(const torch::Tensor& whole) {
  return whole.slice(0, ronde::rank(), std::nullopt, ronde::size());
}

torch::nn::Sequential make_network(std::int64_t inputs, std::int64_t outputs) {
  using namespace torch::nn;
  Sequential network(Linear(inputs, kUnits), ReLU(), Linear(kUnits, kUnits), ReLU(),
                     Linear(kUnits, outputs));
  network->to(torch::kFloat64);
  return network;
}

torch::optim::AdamOptions adam_options() {
  return torch::optim::AdamOptions(1e-3).betas(std::make_tuple(0.5, 0.999));
}

torch::Tensor loss_as(double truth, const torch::Tensor& scores) {
  return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, truth));
}

/// Prints the losses, and how many new points, of all ranks together, are in each cloud.
void report(std::int64_t step, const torch::Tensor& losses, torch::nn::Sequential generator,
            const at::Generator& random) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor made = generator->forward(own_rows(draw_noise(kReportPoints, random)));
  const torch::Tensor near = torch::cdist(made, cloud_centers()) < 3 * kSpread;
  const torch::Tensor counts =
      ronde::allreduce(near.sum(0), {.name = "points by cloud", .op = ronde::ReduceOp::Sum});
  if (ronde::rank() != 0) return;
  const std::int64_t learned = (counts >= kFewestPoints).sum().item<std::int64_t>();
  const double percent = 100.0 * counts.sum().item<double>() / double(kReportPoints);
  std::printf(
      "step %4lld: losses %.4f and %.4f, %lld of %lld clouds, %.1f %% of the points in one\n",
      static_cast<long long>(step), losses[0].item<double>(), losses[1].item<double>(),
      static_cast<long long>(learned), static_cast<long long>(kClouds), percent);
}

/// Returns the losses of discriminator and generator of each step, over the whole batch.
std::vector<double> train(const Options& options) {
  torch::manual_seed(options.seed);
  torch::nn::Sequential generator = make_network(kNoise, 2);
  torch::nn::Sequential discriminator = make_network(2, 1);  // above 0: it takes a point for real
  torch::optim::Adam generator_adam(generator->parameters(), adam_options());
  torch::optim::Adam discriminator_adam(discriminator->parameters(), adam_options());
  ronde::DistributedOptimizer generator_optimizer(generator_adam, generator->named_parameters(),
                                                  {.name = "generator"});
  ronde::DistributedOptimizer discriminator_optimizer(
      discriminator_adam, discriminator->named_parameters(), {.name = "discriminator"});
  ronde::broadcast_parameters(*generator, /*root_rank=*/0);
  ronde::broadcast_parameters(*discriminator, 0);

  // In the same state on all ranks, which so divide the batch that one rank alone would have.
  const auto random = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<double> all;
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    const torch::Tensor real = own_rows(draw_points(options.batch, random));
    const torch::Tensor made = generator->forward(own_rows(draw_noise(options.batch, random)));

    discriminator_optimizer.zero_grad();  // the generator's loss has left gradients here
    const torch::Tensor discriminator_loss = loss_as(1, discriminator->forward(real)) +
                                             loss_as(0, discriminator->forward(made.detach()));
    discriminator_loss.backward();
    discriminator_optimizer.step();

    generator_optimizer.zero_grad();
    const torch::Tensor generator_loss = loss_as(1, discriminator->forward(made));
    {
      const auto guard = discriminator_optimizer.no_sync();  // these gradients nobody wants
      generator_loss.backward();
    }
    generator_optimizer.step();

    const torch::Tensor losses = ronde::allreduce(
        torch::stack({discriminator_loss.detach(), generator_loss.detach()}), {.name = "losses"});
    all.insert(all.end(), {losses[0].item<double>(), losses[1].item<double>()});
    if (step % kReportSteps == 0 || step == options.steps) report(step, losses, generator, random);
  }
  ronde::check_replicas(*generator);
  ronde::check_replicas(*discriminator);
  if (ronde::rank() == 0) {
    std::printf("%d ranks hold the same networks to the last bit\n", ronde::size());
  }
  return all;
}

int run(const Options& options) {
  example::require_divisible("--batch", options.batch, ronde::size(),
                             "each rank takes as many points");
  example::write_numbers(options.losses, "--losses", 2, [&] { return train(options); });
  return 0;
}

}  // namespace
}  // namespace gan

int main(int argc, char** argv) {
  return example::run_program("gan", argc, argv, [](int count, const char* const* words) {
    return gan::run(gan::parse_options(count, words));
  });
}

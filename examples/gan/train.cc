// SPDX-License-Identifier: Apache-2.0
#include "train.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ronde/torch.h>

#include <array>
#include <cstdio>
#include <tuple>

#include "ring.h"

namespace gan {
namespace {

constexpr std::int64_t kNoise = 2;
constexpr std::int64_t kUnits = 64;
constexpr std::int64_t kReportSteps = 250;
constexpr std::int64_t kReportPoints = 2000;
/// A cloud counts as learned with a tenth of the points that an even division would give it.
constexpr std::int64_t kFewestPoints = kReportPoints / kClouds / 10;

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

/// This rank's rows of what all ranks have drawn alike: those that one rank alone would have are so
/// divided among them.
torch::Tensor own_rows(const torch::Tensor& whole) {
  return whole.slice(0, ronde::rank(), std::nullopt, ronde::size());
}

torch::Tensor loss_as(double truth, const torch::Tensor& scores) {
  return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, truth));
}

class Trainer {
 public:
  Trainer(const Networks& networks, std::uint64_t seed)
      : generator_(networks.generator),
        discriminator_(networks.discriminator),
        random_(at::make_generator<at::CPUGeneratorImpl>(seed)),
        generator_adam_(generator_->parameters(), adam_options()),
        discriminator_adam_(discriminator_->parameters(), adam_options()),
        generator_optimizer_(generator_adam_, generator_->named_parameters(),
                             {.name = "generator"}),
        discriminator_optimizer_(discriminator_adam_, discriminator_->named_parameters(),
                                 {.name = "discriminator"}) {
    ronde::broadcast_parameters(*generator_, /*root_rank=*/0);
    ronde::broadcast_parameters(*discriminator_, 0);
  }

  /// The losses of discriminator and generator, over the whole batch.
  std::array<double, 2> step(std::int64_t batch) {
    const torch::Tensor real = own_rows(draw_ring(batch, random_));
    const torch::Tensor made = generator_->forward(own_rows(draw_noise(batch)));
    const torch::Tensor discriminator_loss = step_discriminator(real, made.detach());
    const torch::Tensor generator_loss = step_generator(made);
    const torch::Tensor losses = torch::stack({discriminator_loss, generator_loss});
    const torch::Tensor mean = ronde::allreduce(losses, {.name = "losses"});
    return {mean[0].item<double>(), mean[1].item<double>()};
  }

  /// Of kReportPoints new points of all ranks together, how many are in each cloud.
  torch::Tensor count_made() {
    const torch::NoGradGuard no_grad;
    const torch::Tensor made = generator_->forward(own_rows(draw_noise(kReportPoints)));
    return ronde::allreduce(count_by_cloud(made),
                            {.name = "points by cloud", .op = ronde::ReduceOp::Sum});
  }

 private:
  torch::Tensor step_discriminator(const torch::Tensor& real, const torch::Tensor& made) {
    discriminator_optimizer_.zero_grad();  // the generator's loss has left gradients here
    const torch::Tensor loss =
        loss_as(1, discriminator_->forward(real)) + loss_as(0, discriminator_->forward(made));
    loss.backward();
    discriminator_optimizer_.step();
    return loss.detach();
  }

  torch::Tensor step_generator(const torch::Tensor& made) {
    generator_optimizer_.zero_grad();
    const torch::Tensor loss = loss_as(1, discriminator_->forward(made));
    {
      const auto guard = discriminator_optimizer_.no_sync();  // these gradients nobody wants
      loss.backward();
    }
    generator_optimizer_.step();
    return loss.detach();
  }

  torch::Tensor draw_noise(std::int64_t points) {
    return torch::randn({points, kNoise}, random_, torch::kFloat64);
  }

  torch::nn::Sequential generator_;
  torch::nn::Sequential discriminator_;
  at::Generator random_;  // in the same state on all ranks
  torch::optim::Adam generator_adam_;
  torch::optim::Adam discriminator_adam_;
  ronde::DistributedOptimizer generator_optimizer_;
  ronde::DistributedOptimizer discriminator_optimizer_;
};

void report(std::int64_t step, const std::array<double, 2>& losses, const torch::Tensor& counts) {
  if (ronde::rank() != 0) return;
  const std::int64_t learned = (counts >= kFewestPoints).sum().item<std::int64_t>();
  const double percent = 100.0 * counts.sum().item<double>() / double(kReportPoints);
  std::printf(
      "step %4lld: losses %.4f and %.4f, %lld of %lld clouds, %.1f %% of the points in one\n",
      static_cast<long long>(step), losses[0], losses[1], static_cast<long long>(learned),
      static_cast<long long>(kClouds), percent);
}

}  // namespace

Networks make_networks() {
  return {make_network(kNoise, 2), make_network(2, 1)};
}

std::vector<double> train(const Networks& networks, const Options& options) {
  Trainer trainer(networks, options.seed);
  std::vector<double> all;
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    const std::array<double, 2> losses = trainer.step(options.batch);
    all.insert(all.end(), losses.begin(), losses.end());
    if (step % kReportSteps == 0 || step == options.steps) {
      report(step, losses, trainer.count_made());
    }
  }
  return all;
}

}  // namespace gan

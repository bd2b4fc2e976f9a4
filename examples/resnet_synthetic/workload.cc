// SPDX-License-Identifier: Apache-2.0
#include "workload.h"

#include <ronde/torch.h>

#include <CLI/CLI.hpp>

#include "common/program.h"
#include "model.h"

namespace resnet {

/// The five halvings of the network leave one pixel of images up to this side.
constexpr std::int64_t kOnePixelSide = 32;

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains ResNet on one batch of random images, and prints images per second. Start it with "
      "mpiexec for several ranks.",
      "resnet_synthetic");
  Options options;
  app.add_option("--model", options.model, "resnet18, resnet50 or resnet101")
      ->check(CLI::IsMember(model_names()))
      ->capture_default_str();
  app.add_option("--image-size", options.image_size, "Side of an image, pixels")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--json", options.benchmark.json, "Write the result of --efficiency to this file");
  example::add_benchmark_options(app, options.benchmark);
  example::parse_command_line(app, argc, argv);
  example::check_benchmark_options(options.benchmark);
  if (options.benchmark.batch_size == 1 && options.image_size <= kOnePixelSide) {
    throw CLI::ValidationError("--batch-size",
                               "1 leaves batch normalisation a single value a channel with images "
                               "up to 32x32; use at least 2, or a larger --image-size");
  }
  return options;
}

example::Workload make_workload(const Options& options) {
  const auto make_task = [model = options.model, batch = options.benchmark.batch_size,
                          side = options.image_size](torch::Device device) -> example::Task {
    torch::manual_seed(static_cast<std::uint64_t>(ronde::rank()) + 1);
    ResNet network(model);
    network->to(device);
    const torch::Tensor images = torch::randn({batch, 3, side, side}).to(device);
    const torch::Tensor classes = torch::randint(kClasses, {batch}, torch::kInt64).to(device);
    return {network.ptr(), [network, images, classes]() mutable {
              return torch::cross_entropy_loss(network->forward(images), classes);
            }};
  };
  return {.model = options.model, .make_task = make_task};
}

}  // namespace resnet

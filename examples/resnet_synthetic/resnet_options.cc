// SPDX-License-Identifier: Apache-2.0
#include "resnet_options.h"

#include <CLI/CLI.hpp>

#include "common/program.h"
#include "model.h"

namespace resnet {
namespace {

/// The five halvings of the network leave one pixel of images up to this side.
constexpr std::int64_t kOnePixelSide = 32;

void check(const Options& options) {
  example::check_benchmark_options(options.benchmark);
  if (options.benchmark.batch_size == 1 && options.image_size <= kOnePixelSide) {
    throw CLI::ValidationError("--batch-size",
                               "1 leaves batch normalisation a single value a channel with images "
                               "up to 32x32; use at least 2, or a larger --image-size");
  }
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains ResNet on one batch of random images, and prints images per second. Start it with "
      "mpiexec for several ranks.",
      "resnet_synthetic");
  // The last one counts, so that a script's options can be overridden by what follows.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
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
  check(options);
  return options;
}

}  // namespace resnet

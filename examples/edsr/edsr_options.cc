// SPDX-License-Identifier: Apache-2.0
#include "edsr_options.h"

#include <ronde/torch.h>

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <string_view>

#include "common/program.h"

namespace edsr {
namespace {

/// A size of the network (baseline and full are the published ones) with what suits it.
struct Preset {
  std::string_view name;
  std::int64_t blocks;
  std::int64_t features;
  double residual_scale;
  double learning_rate;
  std::int64_t patch;
  std::int64_t max_side;
  std::int64_t batch;
  std::int64_t lr_halve_every;
};

constexpr std::array kPresets{
    Preset{"tiny", 4, 32, 1.0, 1e-3, 32, 1280, 8, 500},
    Preset{"baseline", 16, 64, 1.0, 1e-4, 48, 0, 16, 200'000},
    Preset{"full", 32, 256, 0.1, 1e-4, 48, 0, 16, 200'000},
};

constexpr double kDefaultMinutes = 3;
constexpr const char* kSyntheticPreset = "baseline";

/// Fills in the preset wherever the command line gives nothing.
void apply_preset(const CLI::App& app, Options& options) {
  for (const Preset& preset : kPresets) {
    if (preset.name != options.preset) continue;
    const auto fill = [&app](const char* name, auto& value, auto from_preset) {
      if (app.count(name) == 0) value = from_preset;
    };
    fill("--blocks", options.network.blocks, preset.blocks);
    fill("--features", options.network.features, preset.features);
    fill("--residual-scale", options.network.residual_scale, preset.residual_scale);
    fill("--lr", options.learning_rate, preset.learning_rate);
    fill("--patch", options.patch, preset.patch);
    fill("--max-side", options.max_side, preset.max_side);
    fill("--batch", options.batch, preset.batch);
    fill("--lr-halve-every", options.lr_halve_every, preset.lr_halve_every);
  }
  if (options.steps == 0 && options.minutes == 0) options.minutes = kDefaultMinutes;
}

void add_data_options(CLI::App& app, Options& options) {
  app.option_defaults()->group("Photographs");
  app.add_option("--data", options.data,
                 "Folder of JPEG or PNG photographs (with sub-folders), or one image; repeatable "
                 "[required without --synthetic]")
      ->take_all();
  app.add_option("--validation", options.validation,
                 "Folder to evaluate on instead of photographs held out of --data; repeatable")
      ->take_all();
  app.add_option("--held-out", options.held_out,
                 "Photographs held out of --data, evenly spaced over the sorted list")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--max-side", options.max_side,
                 "Shrink photographs whose longer side is above this, pixels (0: never) "
                 "[tiny: 1280, else 0]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--min-side", options.min_side,
                 "Skip images with a side below this, pixels (thumbnails)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void add_network_options(CLI::App& app, Options& options) {
  app.option_defaults()->group("Network");
  app.add_option(
         "--preset", options.preset,
         "tiny (4x32), baseline (16x64) or full (32x256) [tiny; with --synthetic: baseline]")
      ->check(CLI::IsMember({"tiny", "baseline", "full"}));
  app.add_option("--blocks", options.network.blocks, "Residual blocks [by preset]")
      ->check(CLI::Range(1, 1000));
  app.add_option("--features", options.network.features, "Channels [by preset]")
      ->check(CLI::Range(1, 4096));
  app.add_option("--residual-scale", options.network.residual_scale,
                 "Factor on each residual branch [1; full: 0.1]")
      ->check(CLI::PositiveNumber);
  app.add_option("--scale", options.network.scale, "Enlarge by 2, 3 or 4")
      ->check(CLI::IsMember({2, 3, 4}))
      ->capture_default_str();
}

void add_training_options(CLI::App& app, Options& options) {
  app.option_defaults()->group("Training");
  app.add_option("--batch", options.batch, "Patches per step over all ranks together [by preset]")
      ->check(CLI::PositiveNumber);
  app.add_option("--patch", options.patch, "Side of a low-resolution patch, pixels [by preset]")
      ->check(CLI::Range(4, 4096));
  app.add_option("--steps", options.steps, "Stop after this many steps, those resumed included")
      ->check(CLI::PositiveNumber);
  app.add_option("--minutes", options.minutes,
                 "Stop after this much training, that resumed included [3 if no --steps]")
      ->check(CLI::PositiveNumber);
  app.add_option("--until-gain", options.until_gain,
                 "Stop once the held-out photographs are so many dB better than by bicubic");
  app.add_option("--lr", options.learning_rate, "Adam's first learning rate [by preset]")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr-halve-every", options.lr_halve_every,
                 "Halve the learning rate every so many steps [by preset]")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Of initial parameters, order and patches")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--workers", options.workers, "DataLoader threads per rank (0: none)")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
}

void add_output_options(CLI::App& app, Options& options) {
  app.option_defaults()->group("Output");
  app.add_option("--output", options.output, "Folder for checkpoint and comparison.png")
      ->capture_default_str();
  app.add_option("--json", options.json,
                 "Write the final table, or the result of --efficiency, to this file");
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "Also save a checkpoint every so many steps")
      ->check(CLI::PositiveNumber);
}

void add_synthetic_options(CLI::App& app, Options& options) {
  app.add_flag("--synthetic", options.synthetic,
               "Measure training on random patches instead of photographs; implied by --efficiency "
               "and --no-distributed")
      ->group(example::kBenchmarkGroup);
  example::add_benchmark_options(app, options.benchmark);
}

/// Returns whether a synthetic benchmark reads this option.
bool is_for_benchmark(const CLI::Option& option) {
  const std::string name = option.get_name();
  return option.get_group() == "Network" || option.get_group() == example::kBenchmarkGroup ||
         name == "--patch" || name == "--seed" || name == "--json";
}

/// Refuses what the chosen kind of run, training or benchmark, would ignore.
void check_kind(const CLI::App& app, const Options& options) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    if (options.synthetic && !is_for_benchmark(*option)) {
      throw CLI::ExcludesError("--synthetic", option->get_name());
    }
    const std::string name = option->get_name();
    const bool is_for_both =
        name == "--amp" || name == "--device" || name == "--checkpoint" || name == "--resume";
    if (!options.synthetic && !is_for_both && option->get_group() == example::kBenchmarkGroup) {
      throw CLI::RequiresError(option->get_name(), "--synthetic");
    }
  }
  if (!options.synthetic && options.data.empty()) throw CLI::RequiredError("--data");
}

/// Fills in what follows from the options together.
void complete(const CLI::App& app, Options& options) {
  options.synthetic |= options.benchmark.efficiency || options.benchmark.no_distributed;
  check_kind(app, options);
  if (options.synthetic) {
    options.benchmark.json = options.json;
    example::check_benchmark_options(options.benchmark);
    if (app.count("--preset") == 0) options.preset = kSyntheticPreset;
  }
  apply_preset(app, options);
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains EDSR, single-image super-resolution, on a folder of photographs, or measures how "
      "fast it trains (--synthetic). Start it with mpiexec for several ranks.",
      "edsr");
  Options options;
  add_data_options(app, options);
  add_network_options(app, options);
  add_training_options(app, options);
  add_output_options(app, options);
  add_synthetic_options(app, options);
  example::parse_command_line(app, argc, argv);
  complete(app, options);
  return options;
}

example::Workload make_workload(const Options& options) {
  const EdsrOptions shape = options.network;
  const auto make_task = [shape, batch = options.benchmark.batch_size, side = options.patch,
                          seed = options.seed](torch::Device device) -> example::Task {
    torch::manual_seed(seed + static_cast<std::uint64_t>(ronde::rank()));
    Edsr network(shape);
    network->to(device);
    const std::int64_t high = side * shape.scale;
    const torch::Tensor patches = torch::rand({batch, 3, side, side}).to(device);
    const torch::Tensor target = torch::rand({batch, 3, high, high}).to(device);
    return {network.ptr(), [network, patches, target]() mutable {
              return torch::l1_loss(network->forward(patches), target);
            }};
  };
  return {.model = "edsr-" + std::to_string(shape.blocks) + "x" + std::to_string(shape.features),
          .make_task = make_task};
}

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
// A network split over one axis of a grid of ranks and trained on parts of the data over the other.
#include <ronde/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/program.h"
#include "digits/divided_net.h"
#include "model.h"

namespace hybrid {
namespace {

/// The axes of the grid of ranks. Neighbours along the second share a host, where there is one for
/// them: they exchange more.
enum Axis { kData, kModel };

struct Options {
  int split = 0;  ///< 0: 2 if the number of ranks is even, or 1
  std::int64_t hidden = 240;
  example::TrainingOptions training;
};

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Trains a small network on handwritten digits, its hidden layer split over a group of ranks, "
      "each group on its part of the data. Start it with mpiexec for several ranks; the result "
      "does not depend on their number.",
      "hybrid");
  Options options;
  app.add_option("--split", options.split,
                 "So many ranks hold a model together [2 if the number of ranks is even, or 1]")
      ->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.hidden, "Units of the hidden layer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_options(app, options.training);
  example::parse_command_line(app, argc, argv);
  return options;
}

/// Sets the option that depends on the number of ranks, and checks that all fit.
void complete(Options& options) {
  if (options.split == 0) options.split = ronde::size() % 2 == 0 ? 2 : 1;
  example::require_groups("--split", options.split);
  example::require_divisible("--hidden", options.hidden, options.split,
                             "each rank of a group holds as many units of the hidden layer");
  check_readers(options.training, ronde::size() / options.split);
}

/// Returns the loss of each step.
std::vector<double> train(const Options& options) {
  const ronde::Grid grid({ronde::size() / options.split, options.split});
  if (ronde::rank() == 0) {
    std::printf("grid %d x %d: groups of ranks x ranks of a group, which hold a model together\n",
                grid.size(kData), grid.size(kModel));
  }
  torch::manual_seed(options.training.seed);  // every rank draws the whole model
  example::DividedNet net(
      [&] { return std::make_shared<Block>(options.hidden, example::place_on(grid, kModel)); });
  const std::vector<double> losses =
      example::train(net, options.training, grid.set(kData), grid.size(kData));
  print_share_right(net);
  return losses;
}

int run(Options options) {
  complete(options);
  example::write_numbers(options.training.losses, "--losses", 1, [&] { return train(options); });
  return 0;
}

}  // namespace
}  // namespace hybrid

int main(int argc, char** argv) {
  return example::run_program("hybrid", argc, argv, [](int count, const char* const* words) {
    return hybrid::run(hybrid::parse_options(count, words));
  });
}

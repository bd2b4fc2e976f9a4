// SPDX-License-Identifier: Apache-2.0
#include "hybrid_options.h"

#include <CLI/CLI.hpp>
#include <string>

#include "common/program.h"

namespace hybrid {
namespace {

void require_divisible(const std::string& option, std::int64_t number, std::int64_t parts,
                       const std::string& reason) {
  if (number % parts == 0) return;
  throw CLI::ValidationError(option, std::to_string(number) + " is not divisible by " +
                                         std::to_string(parts) + ": " + reason);
}

void check(const Options& options, int ranks) {
  if (ranks % options.split != 0) {
    throw CLI::ValidationError("--split", "the " + std::to_string(ranks) +
                                              " ranks cannot be divided into groups of " +
                                              std::to_string(options.split));
  }
  require_divisible("--hidden", options.hidden, options.split,
                    "each rank of a group holds as many units of the hidden layer");
  require_divisible("--batch", options.batch, ranks / options.split,
                    "each group of ranks takes as many images of a batch");
}

}  // namespace

Options parse_options(int argc, const char* const* argv, int ranks) {
  CLI::App app(
      "Trains a small network on handwritten digits, its hidden layer split over a group of ranks, "
      "each group on its part of the data. Start it with mpiexec for several ranks; the result "
      "does not depend on their number.",
      "hybrid");
  // The last one counts, so that a script's options can be overridden by what follows.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Options options;
  options.split = ranks % 2 == 0 ? 2 : 1;
  app.add_option("--split", options.split,
                 "So many ranks hold a model together [2 if the number of ranks is even, or 1]")
      ->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.hidden, "Units of the hidden layer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Images of a step, of all ranks together")
      ->check(CLI::Range(1, 1440))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "How often to go through the images")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first weights and of the order of the images")
      ->capture_default_str();
  app.add_option("--losses", options.losses,
                 "Write the loss of each step to this file, one a line");
  example::parse_command_line(app, argc, argv);
  check(options, ranks);
  return options;
}

}  // namespace hybrid

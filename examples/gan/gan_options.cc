// SPDX-License-Identifier: Apache-2.0
#include "gan_options.h"

#include <CLI/CLI.hpp>
#include <string>

#include "common/program.h"

namespace gan {

Options parse_options(int argc, const char* const* argv, int ranks) {
  CLI::App app(
      "Trains a generator and a discriminator on points in eight clouds around a circle. Start it "
      "with mpiexec for several ranks; they divide each batch.",
      "gan");
  // The last one counts, so that a script's options can be overridden by what follows.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
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
  if (options.batch % ranks != 0) {
    throw CLI::ValidationError("--batch", std::to_string(options.batch) +
                                              " cannot be divided among " + std::to_string(ranks) +
                                              " ranks; give a multiple of " +
                                              std::to_string(ranks));
  }
  return options;
}

}  // namespace gan

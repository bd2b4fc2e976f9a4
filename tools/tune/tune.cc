// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/tune.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ronde/config.h"
#include "ronde/error.h"
#include "tools/tune/collectives.h"

namespace ronde::tool {
namespace {

struct Options {
  bool collectives = false;
  CollectiveTuningOptions of_collectives;
  std::vector<std::string> command;  ///< of a user who expects that a program is tuned
};

void add_size(CLI::App& tune, const std::string& name, const std::string& help,
              std::uint64_t& bytes) {
  tune.add_option_function<std::string>(
          name,
          [name, &bytes](const std::string& text) {
            try {
              bytes = parse_bytes(text);
              if (bytes == 0) throw UsageError("at least one byte has to be moved");
            } catch (const UsageError& error) {
              throw CLI::ValidationError(name, error.what());
            }
          },
          help)
      ->default_str(format_bytes(bytes));
}

int run(const CLI::App& tune, const Options& options) {
  if (options.collectives && tune.remaining_size() > 0) throw CLI::ExtrasError(tune.remaining());
  if (!options.collectives || !options.command.empty()) {
    throw CLI::ValidationError(
        "ronde tune",
        "to tune a program, run it with RONDE_AUTOTUNE=1 and RONDE_TUNED=FILE: it is tuned while "
        "it runs. To measure the algorithms between hosts, start `ronde tune --collectives` "
        "without a program, by the launcher of the job");
  }
  return tune_collectives(options.of_collectives);
}

}  // namespace

void add_tune(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App& tune = *app.add_subcommand(
      "tune",
      "Measures the algorithms of collectives between hosts (--collectives): start it by the "
      "launcher of the job, on its ranks. It tunes no program: RONDE_AUTOTUNE=1 with "
      "RONDE_TUNED=FILE does, while the program runs.");
  tune.add_flag("--collectives", options->collectives, "measure them, and write the rules to use");
  tune.add_option("--out", options->of_collectives.out, "the file to write, for RONDE_TUNED")
      ->capture_default_str();
  add_size(tune, "--min", "the smallest size", options->of_collectives.min_bytes);
  add_size(tune, "--max", "the largest size; each is twice the one before",
           options->of_collectives.max_bytes);
  tune.add_option("command", options->command, "not taken: no program is started");
  tune.positionals_at_end();
  tune.allow_extras();  // run() says what to do instead
  tune.callback([options, &tune, &exit_code] { exit_code = run(tune, *options); });
}

}  // namespace ronde::tool

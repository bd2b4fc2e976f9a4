// SPDX-License-Identifier: Apache-2.0
// A start of the program for each point of the search (class TuneSearch), then a table and the
// file.
#include "tools/tune/tune.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/src/tuned_file.h"
#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/tune_search.h"
#include "tools/tune/collectives.h"
#include "tools/tune/program.h"
#include "tools/tune/variables.h"

namespace ronde::tool {
namespace {

constexpr int kUsageExit = 2;

struct Options {
  std::size_t runs = 40;
  std::size_t steps = 10;
  std::string out = "ronde_tuned.json";
  bool collectives = false;
  CollectiveTuningOptions of_collectives;
  std::vector<std::string> command;
};

using Values = std::map<std::string, std::string>;

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", seconds * 1e3);
  return text;
}

/// What differs from the defaults.
std::string text_of(const Values& values, const Values& defaults) {
  std::string text;
  for (const auto& [name, value] : values) {
    if (value != defaults.at(name)) text += (text.empty() ? "" : " ") + name + "=" + value;
  }
  return text.empty() ? "the defaults" : text;
}

constexpr std::size_t kFewestRuns = 20;

/// The comparison at the end takes as many runs as it needs. Of the others, arms with their later
/// rounds take half, and the local search a third.
TuneSearch::Limits limits_of(std::size_t runs) {
  TuneSearch::Limits limits;
  const std::size_t others = runs - 2 * limits.pairs;
  limits.arms = others / 4;
  limits.neighbours = others / 3;
  return limits;
}

/// One tuning: the runs, what they took, and what is found.
class Tuning {
 public:
  explicit Tuning(const Options& options)
      : options_(options), program_(options.command, options.steps) {}

  /// The exit code.
  int run();

 private:
  RunReport measure(const Values& values, const std::string& what);
  void keep_rules(TunedSettings& settings) const;
  void print_table() const;

  const Options& options_;
  const Program program_;
  std::size_t runs_ = 0;
  Values defaults_;
  std::map<std::string, std::vector<double>> times_;  ///< by the text of the values
};

RunReport Tuning::measure(const Values& values, const std::string& what) {
  const std::string text = text_of(values, defaults_);
  std::cout << "run " << ++runs_ << " (" << what << "): " << text << std::endl;
  const RunReport report = program_.run(values);
  if (report.problem.empty()) {
    std::cout << "  " << milliseconds(report.step_s) << " a step, of " << report.steps
              << " steps\n";
    times_[text].push_back(report.step_s);
  } else {
    std::cout << "  does not count: " << report.problem << "\n";
  }
  return report;
}

int Tuning::run() {
  const RunReport first = measure({}, "first");
  if (!first.problem.empty()) {
    std::cerr << "ronde tune: the program cannot be tuned, as with the settings of the environment "
              << first.problem << "\n";
    return kUsageExit;
  }
  const std::vector<TunedVariable> variables = tuned_variables(first);
  if (variables.empty()) {
    std::cerr << "ronde tune: every variable that could be tuned is set; unset some\n";
    return kUsageExit;
  }
  std::vector<std::size_t> sizes;
  for (const TunedVariable& variable : variables) sizes.push_back(variable.values.size());
  const TuneSearch::Point start = defaults_of(variables);
  defaults_ = values_at(variables, start);
  TuneSearch search(sizes, {start}, limits_of(options_.runs));
  while (!search.finished()) {
    const bool confirms = search.phase() == TuneSearch::Phase::Confirm;
    const RunReport report =
        measure(values_at(variables, search.next()), confirms ? "comparison" : "search");
    search.tell({report.problem.empty() ? report.step_s : std::numeric_limits<double>::infinity()});
  }
  TunedSettings settings = first.key;
  settings.values = values_at(variables, search.best());
  settings.finished = true;
  settings.ranks = first.ranks;
  settings.hosts = first.hosts;
  settings.step_s = search.time_of(search.best());
  settings.start_step_s = search.time_of(start);
  keep_rules(settings);
  print_table();
  if (search.gain() > 0) {
    std::cout << "\n"
              << text_of(settings.values, defaults_) << ": " << std::lround(100 * search.gain())
              << " % less time a step than with the defaults\n";
  } else {
    std::cout << "\nnothing is clearly faster than the defaults\n";
  }
  const std::string problem = write_tuned(options_.out, settings);
  if (!problem.empty()) {
    std::cerr << "ronde tune: " << options_.out << ": " << problem << "\n";
    return EXIT_FAILURE;
  }
  std::cout << "written: " << options_.out << "; use it with RONDE_TUNED=" << options_.out << "\n";
  return EXIT_SUCCESS;
}

/// Those that --collectives has put into the file.
void Tuning::keep_rules(TunedSettings& settings) const {
  std::string ignored;
  const auto known = read_tuned(options_.out, ignored);
  if (!known || known->ranks != settings.ranks || known->hosts != settings.hosts) return;
  const auto rules = known->values.find("RONDE_ALGORITHMS");
  if (rules != known->values.end()) settings.values.insert(*rules);
}

void Tuning::print_table() const {
  std::vector<std::pair<double, std::string>> rows;
  for (const auto& [text, times] : times_) rows.emplace_back(TuneSearch::median(times), text);
  std::ranges::sort(rows);
  std::cout << "\n"
            << std::setw(12) << "a step"
            << "  runs  settings\n";
  for (const auto& [time, text] : rows) {
    std::cout << std::setw(12) << milliseconds(time) << std::setw(6) << times_.at(text).size()
              << "  " << text << "\n";
  }
}

}  // namespace

namespace {

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

int run(Options& options) {
  if (!options.collectives) {
    if (options.command.empty()) throw CLI::RequiredError("command");
    return Tuning(options).run();
  }
  if (!options.command.empty()) {
    throw CLI::ExcludesError("--collectives", "a program: start `ronde tune` by your launcher");
  }
  options.of_collectives.out = options.out;
  return tune_collectives(options.of_collectives);
}

}  // namespace

void add_tune(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App& tune = *app.add_subcommand(
      "tune",
      "Runs a program again and again, and finds the variables with which its steps are "
      "fastest. Variables that are set stay as they are.");
  tune.add_option("--runs", options->runs, "about how many runs, at most")
      ->check(CLI::Range(kFewestRuns, std::size_t{10'000}))
      ->capture_default_str();
  tune.add_option("--steps", options->steps, "a run of fewer steps does not count")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  tune.add_option("--out", options->out, "the file to write, for RONDE_TUNED")
      ->capture_default_str();
  tune.add_flag("--collectives", options->collectives,
                "instead of a program, measure the algorithms of collectives between hosts: start "
                "it by the launcher of the job, on its ranks");
  add_size(tune, "--min", "the smallest size of --collectives", options->of_collectives.min_bytes);
  add_size(tune, "--max", "its largest size; each is twice the one before",
           options->of_collectives.max_bytes);
  tune.add_option("command", options->command, "after --: the program, with its launcher");
  tune.positionals_at_end();
  tune.callback([options, &exit_code] {
    try {
      exit_code = run(*options);
    } catch (const Error& error) {
      std::cerr << "ronde tune: " << error.what() << '\n';
      exit_code = kUsageExit;
    }
  });
}

}  // namespace ronde::tool

// SPDX-License-Identifier: Apache-2.0
// `ronde sim`: predicts, and starts no ranks.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <utility>

#include "observe/base/replace_file.h"
#include "observe/report/text.h"
#include "tools/bench/base/report.h"
#include "tools/bench/base/simulation_costs.h"
#include "tools/commands.h"
#include "tools/sim/scenario.h"

namespace ronde::tool {
namespace {

using Words = std::vector<std::string>;

struct Options {
  std::string timeline, model, kill, json, goal;
  double compute_ms = 0;
  std::vector<int> ranks;
  int ranks_per_host = 1;
  Words costs, bandwidths, latencies, wire_dtypes, sets, slow;
  int steps = 20;
  std::uint64_t seed = 0;
  double mtbf_hours = 0, restart_s = 0;
  int checkpoint_steps = 0;
};

/// A setting, and the values to try.
struct Axis {
  std::string name;
  Words values;
  std::function<void(Scenario&, const std::string& value)> set;
};

/// Returns why the variable cannot have the value; empty if it can.
std::string problem_of(const ConfigEntry& entry, const std::string& value) try {
  Config config;
  entry.set(config, value);
  return {};
} catch (const UsageError& error) {
  return error.what();
}

/// VAR=VALUE or VAR=VALUE,VALUE. What is a value with its commas, such as a list of rules, is one.
Axis axis_of(const std::string& text) {
  const std::string name = text.substr(0, text.find('='));
  const auto entry = std::ranges::find(config_table(), name, &ConfigEntry::name);
  if (entry == config_table().end() || name == text) {
    throw UsageError("--set " + text +
                     ": give VAR=VALUE with a variable that `ronde info` lists, as in "
                     "RONDE_FUSION_BYTES=32MiB,64MiB");
  }
  if (entry->scope == ConfigScope::PerRank) {
    throw UsageError("--set " + text + ": " + name +
                     " may differ between ranks, and has no effect here");
  }
  Axis axis{name, {text.substr(name.size() + 1)}, [&entry = *entry](auto& scenario, auto& value) {
              entry.set(scenario.group.config, value);
            }};
  if (problem_of(*entry, axis.values.front()).empty()) return axis;
  std::istringstream words(std::exchange(axis.values, {}).front() + ",");
  for (std::string word; std::getline(words, word, ',');) {
    if (const std::string problem = problem_of(*entry, word); !problem.empty()) {
      throw UsageError("--set " + name + ": " + problem);
    }
    axis.values.push_back(word);
  }
  return axis;
}

std::vector<Axis> axes_of(const Options& options) {
  std::vector<Axis> axes;
  const auto add = [&axes](const char* name, const Words& values, auto set) {
    if (!values.empty()) axes.push_back({name, values, set});
  };
  add("bandwidth_gbit", options.bandwidths, [](Scenario& scenario, const std::string& value) {
    scenario.group.network.gap_per_byte = 8e-9 / std::stod(value);
  });
  add("latency_us", options.latencies, [](Scenario& scenario, const std::string& value) {
    scenario.group.network.latency = std::stod(value) * 1e-6;
  });
  add("wire_dtype", options.wire_dtypes, [](Scenario& scenario, const std::string& value) {
    scenario.wire_dtype.reset();
    if (value != "none") scenario.wire_dtype = value == "f16" ? DataType::F16 : DataType::BF16;
  });
  for (const std::string& text : options.sets) axes.push_back(axis_of(text));
  return axes;
}

/// "RANK:FACTOR" or "RANK@STEP": two numbers.
std::pair<int, double> pair_of(const std::string& option, const std::string& text, char between) {
  std::istringstream stream(text);
  std::pair<int, double> pair{-1, -1};
  char sign = 0;
  stream >> pair.first >> sign >> pair.second;
  constexpr double kMost = 1e6;
  const bool is_pair = stream && stream.peek() == EOF && sign == between;
  if (is_pair && pair.first >= 0 && pair.second >= 0 && pair.second <= kMost) return pair;
  throw UsageError(option + " " + text + ": give two numbers, as in 3" + between + "2");
}

void check_rank(const std::string& option, int rank, int ranks) {
  if (rank < ranks) return;
  throw UsageError(option + ": there is no rank " + std::to_string(rank) + " among " +
                   std::to_string(ranks));
}

/// Refuses more ranks than this host has memory for, before it is used up.
void check_memory(int ranks) {
  constexpr double kBytesOfARank = 200e3;
  const double needed = kBytesOfARank * ranks;
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed <= memory) return;
  throw UsageError("--ranks " + std::to_string(ranks) + " need about " + amount_text(needed) +
                   " of memory, and this host has " + amount_text(memory));
}

Program program_of(const Options& options) {
  if (options.timeline.empty() == options.model.empty()) {
    throw UsageError("give either --timeline FILE or --model NAME");
  }
  if (!options.timeline.empty()) return read_program(options.timeline);
  if (options.compute_ms > 0) return model_program(options.model, options.compute_ms);
  throw UsageError(
      "--model needs --compute-ms, the time of forward and backward, which no list of gradients "
      "tells");
}

bool has_links(const Options& options) {
  return std::ranges::max(options.ranks) > options.ranks_per_host;
}

/// Returns the costs of all files; those that options give count as fitted.
SimulationCosts costs_of(const Options& options) {
  if (options.costs.empty() && (options.bandwidths.empty() || options.latencies.empty())) {
    throw UsageError(
        "give --costs FILE, which `ronde bench allreduce --model --json FILE` measures, or "
        "--bandwidth and --latency");
  }
  SimulationCosts costs;
  for (const std::string& path : options.costs) costs.read(path);
  if (!options.bandwidths.empty()) costs.fitted.insert("network.gap_per_byte");
  if (!options.latencies.empty()) costs.fitted.insert("network.latency");
  const bool knows_links =
      costs.fitted.contains("network.gap_per_byte") && costs.fitted.contains("network.latency");
  if (knows_links || !has_links(options)) return costs;
  throw UsageError(
      "--costs: nothing was measured between hosts; add the file of `ronde bench allreduce "
      "--model --raw --backend fabric --json FILE` on two hosts, or --bandwidth and --latency");
}

Scenario base_scenario(const Options& options, const Program& program,
                       const SimulationCosts& costs) {
  Scenario scenario;
  scenario.group.network = costs.network;
  scenario.group.host = costs.host;
  scenario.group.config.log_level = "off";  // the table is the output
  scenario.wire_dtype = program.wire_dtype;
  scenario.steps = options.steps;
  scenario.seed = options.seed;
  const int fewest = std::ranges::min(options.ranks);
  for (const std::string& text : options.slow) {
    const auto [rank, factor] = pair_of("--slow", text, ':');
    check_rank("--slow " + text, rank, fewest);
    scenario.slow[rank] = factor;
  }
  if (!options.kill.empty()) {
    const auto [rank, step] = pair_of("--kill", options.kill, '@');
    check_rank("--kill " + options.kill, rank, fewest);
    if (step >= options.steps || step != std::floor(step)) {
      throw UsageError("--kill " + options.kill + ": steps are 0 to " +
                       std::to_string(options.steps - 1) + " (--steps)");
    }
    scenario.kill = {rank, static_cast<int>(step)};
  }
  scenario.keeps_messages = !options.goal.empty();
  return scenario;
}

/// The share of time in which training advances, with a checkpoint every so many steps, and where
/// every failure of a host costs the restart and all since the last one: the exact model, without
/// the time to write a checkpoint, of J. T. Daly, "A higher order estimate of the optimum
/// checkpoint interval for restart dumps", 2006.
double goodput(const Options& options, int hosts, double step_ms) {
  if (options.mtbf_hours <= 0) return Outcome::kNone;
  const double between_failures_s = options.mtbf_hours * 3600 / hosts;
  const double interval = options.checkpoint_steps * step_ms / 1e3 / between_failures_s;
  return interval / (std::exp(options.restart_s / between_failures_s) * std::expm1(interval));
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

/// Returns the value of an axis in a combination; the last axis changes first.
const std::string& value_of(const std::vector<Axis>& axes, std::size_t axis,
                            std::size_t combination) {
  for (std::size_t i = axes.size() - 1; i > axis; --i) combination /= axes[i].values.size();
  return axes[axis].values[combination % axes[axis].values.size()];
}

Json row_of(const Options& options, const Program& program, int ranks, const Outcome& outcome) {
  const int hosts = (ranks + options.ranks_per_host - 1) / options.ranks_per_host;
  const double compute_ms = program.compute_us() / 1e3;
  const auto samples = static_cast<double>(program.samples) * ranks;
  return {{"benchmark", "sim"},
          {"program", options.timeline.empty() ? options.model : options.timeline},
          {"ranks", ranks},
          {"hosts", hosts},
          {"steps", options.steps},
          {"seed", options.seed},
          {"step_ms", number(outcome.step_ms)},
          {"compute_ms", compute_ms},
          {"exposed_ms", number(outcome.exposed_ms)},
          {"exposed_percent", number(100 * outcome.exposed_ms / outcome.step_ms)},
          {"efficiency_percent", number(100 * compute_ms / outcome.step_ms)},
          {"samples_per_s", samples > 0 ? number(1e3 * samples / outcome.step_ms) : Json()},
          {"link_messages", number(outcome.link_messages)},
          {"link_bytes", number(outcome.link_bytes)},
          {"engine_us", number(outcome.engine_us)},
          {"goodput_percent", number(100 * goodput(options, hosts, outcome.step_ms))},
          {"first_told_ms", number(outcome.first_told_ms)},
          {"last_told_ms", number(outcome.last_told_ms)},
          {"told", outcome.told}};
}

std::vector<Column> columns(const Options& options, const std::vector<Axis>& axes) {
  std::vector<Column> all = {{"ranks", "ranks"},
                             {"step ms", "step_ms", 2},
                             {"samples/s", "samples_per_s", 1},
                             {"efficiency %", "efficiency_percent", 1},
                             {"exposed %", "exposed_percent", 1},
                             {"link messages", "link_messages"},
                             {"link bytes", "link_bytes"},
                             {"rank 0 us", "engine_us", 1}};
  if (options.mtbf_hours > 0) all.push_back({"goodput %", "goodput_percent", 1});
  if (!options.kill.empty()) all.push_back({"told ms", "last_told_ms", 2});
  for (const Axis& axis : axes) {
    if (axis.values.size() > 1) all.push_back({axis.name, axis.name});
  }
  return all;
}

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  const std::string why = replace_file(path, write);
  if (!why.empty()) throw UsageError(path + " cannot be written: " + why);
}

void print_inputs(const Options& options, const Program& program, const SimulationCosts& costs,
                  Report& report) {
  std::uint64_t bytes = 0;
  for (const auto& operation : program.operations) bytes += operation.bytes;
  if (!program.remark.empty()) report.say(program.remark);
  report.say("a step: " + count_text(program.operations.size(), "operation") + " of " +
             amount_text(static_cast<double>(bytes)) + ", " + time_text(program.compute_us()) +
             " of computing");
  const std::string defaults = costs.defaults_text(has_links(options));
  if (!defaults.empty()) report.say(defaults);
}

int run(const Options& options) {
  const Program program = program_of(options);
  const std::vector<Axis> axes = axes_of(options);
  const SimulationCosts costs = costs_of(options);
  const Scenario base = base_scenario(options, program, costs);
  check_memory(std::ranges::max(options.ranks));
  std::size_t combinations = 1;
  for (const Axis& axis : axes) combinations *= axis.values.size();
  if (base.keeps_messages && (combinations * options.ranks.size() > 1 || base.kill)) {
    throw UsageError("--goal is of one row, without --kill");
  }
  Report report(&std::cout);
  const auto save = [&] {
    if (options.json.empty()) return;
    write_file(options.json, [&](std::ostream& out) { out << report.rows().dump(2) << '\n'; });
  };
  save();  // before time is spent, as it may not be writable
  print_inputs(options, program, costs, report);
  report.begin_table(columns(options, axes));
  for (std::size_t row = 0; row < combinations * options.ranks.size(); ++row) {
    const int ranks = options.ranks[row / combinations];
    Scenario scenario = base;
    for (int rank = 0; rank < ranks; ++rank) {
      scenario.group.host_of.push_back(rank / options.ranks_per_host);
    }
    for (std::size_t i = 0; i < axes.size(); ++i) axes[i].set(scenario, value_of(axes, i, row));
    const Outcome outcome = simulate(scenario, program);
    Json json = row_of(options, program, ranks, outcome);
    for (std::size_t i = 0; i < axes.size(); ++i) json[axes[i].name] = value_of(axes, i, row);
    json["default_costs"] = costs.json()["default"];
    report.add(std::move(json));
    save();
    if (!outcome.told.empty()) report.say("told: " + outcome.told);
    if (options.goal.empty()) continue;
    write_file(options.goal,
               [&](std::ostream& out) { write_goal(outcome, scenario.group.network, out); });
  }
  if (!std::cout.flush()) throw Error("the output could not be written");
  return EXIT_SUCCESS;
}

}  // namespace

void add_sim(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App& sim = *app.add_subcommand(
      "sim", "Predicts steps of a program on any number of ranks, from the timeline of one");
  const auto add_list = [&](const char* name, auto& list, const char* help) {
    return sim.add_option(name, list, help)->delimiter(',');
  };
  constexpr int kMost = 100'000'000;
  sim.add_option("--timeline", options->timeline, "File of a rank in a folder of RONDE_TIMELINE");
  sim.add_option("--model", options->model, "In its place: resnet18, resnet50, edsr or edsr-full");
  sim.add_option("--compute-ms", options->compute_ms, "With --model: forward and backward")
      ->check(CLI::Range(1e-3, 1e7));
  add_list("--ranks", options->ranks, "Numbers of ranks")->required()->check(CLI::Range(1, kMost));
  sim.add_option("--ranks-per-host", options->ranks_per_host, "The last host may have fewer")
      ->check(CLI::Range(1, kMost))
      ->capture_default_str();
  sim.add_option("--costs", options->costs, "Files of `ronde bench allreduce --model --json FILE`");
  add_list("--bandwidth", options->bandwidths, "Gbit/s of a host's link")
      ->check(CLI::Range(1e-6, 1e6));
  add_list("--latency", options->latencies, "Microseconds between hosts")
      ->check(CLI::Range(0.0, 1e9));
  add_list("--wire-dtype", options->wire_dtypes, "In which gradients travel")
      ->check(CLI::IsMember({"none", "f16", "bf16"}));
  sim.add_option("--set", options->sets, "VAR=VALUE,... of a RONDE_ variable");
  sim.add_option("--steps", options->steps, "The first quarter is not counted")
      ->check(CLI::Range(1, kMost))
      ->capture_default_str();
  sim.add_option("--seed", options->seed, "Of how fast each rank computes in each step");
  sim.add_option("--slow", options->slow, "RANK:FACTOR of its computing time");
  sim.add_option("--kill", options->kill, "RANK@STEP: who learns of its death, and when");
  CLI::Option* const restart =
      sim.add_option("--restart-s", options->restart_s, "From a failure until training goes on")
          ->check(CLI::Range(0.0, 1e9));
  CLI::Option* const checkpoint =
      sim.add_option("--checkpoint-steps", options->checkpoint_steps, "Between checkpoints")
          ->check(CLI::Range(1, kMost));
  sim.add_option("--mtbf", options->mtbf_hours, "Hours between failures of a host, for goodput")
      ->check(CLI::Range(1e-3, 1e9))
      ->needs(restart)
      ->needs(checkpoint);
  sim.add_option("--json", options->json, "Also write the rows to this file");
  sim.add_option("--goal", options->goal, "Write the last step for LogGOPSim");
  sim.callback([options, &exit_code] {
    exit_code = exit_code_of("ronde sim", [&] { return run(*options); });
  });
}

}  // namespace ronde::tool

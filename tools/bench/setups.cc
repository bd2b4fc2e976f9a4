// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/setups.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "backends/compose.h"
#include "tools/bench/gpu_bench.h"
#include "tools/bench/gradient_lists.h"
#include "tools/bench/turns.h"

namespace ronde::tool {
namespace {

/// One way to move what is on GPUs, and how long it takes.
struct Setup {
  std::string name;
  Backend* backend = nullptr;
};

/// What is measured unless others are asked for.
const std::vector<std::string>& usual_names() {
  static const std::vector<std::string> names = {"mpi", "mpi-reg", "mpi-opt", "mpi-opt-nocache",
                                                 "nccl"};
  return names;
}

/// Of the study's table; each up to and with its size.
struct SizeClass {
  std::string_view title;
  std::size_t most = 0;
};
constexpr std::array kClasses = {
    SizeClass{"up to 128 KiB", std::size_t{128} << 10},
    SizeClass{"128 KiB to 16 MiB", std::size_t{16} << 20},
    SizeClass{"16 to 32 MiB", std::size_t{32} << 20},
    SizeClass{"32 to 64 MiB", std::size_t{64} << 20},
    SizeClass{"more", ~std::size_t{0}},
};

constexpr int kIterations = 20;

/// What there is a time of, in the order of the table.
std::vector<std::string> timed_names(const std::vector<std::string>& set_ups,
                                     std::span<const std::string> hand_overs) {
  std::vector<std::string> names = {"copy"};
  names.insert(names.end(), hand_overs.begin(), hand_overs.end());
  names.insert(names.end(), set_ups.begin(), set_ups.end());
  return names;
}

/// The columns of a table, with the texts that they point to.
struct Table {
  std::deque<std::string> texts;
  std::vector<Column> columns;

  void add(std::string title, std::string key, int digits = 0) {
    texts.push_back(std::move(title));
    const std::string_view kept = texts.back();
    texts.push_back(std::move(key));
    columns.push_back({kept, texts.back(), digits});
  }
  void add_times(const std::vector<std::string>& names, const std::string& unit, int digits) {
    for (const std::string& name : names) add(name + " " + unit, name + "_" + unit, digits);
    add("mpi/mpi-opt", "mpi_over_mpi-opt", 2);
    add("mpi-reg/mpi-opt", "mpi-reg_over_mpi-opt", 2);
    add("nocache/mpi-opt", "mpi-opt-nocache_over_mpi-opt", 2);
  }
};

std::size_t bytes_of(std::span<const std::size_t> counts) {
  std::size_t elements = 0;
  for (const std::size_t count : counts) elements += count;
  return elements * sizeof(float);
}

/// The gradients of a model in the order in which backward makes them, fused up to `limit` bytes.
std::vector<std::vector<std::size_t>> messages_of(const GradientList& list, std::size_t limit) {
  std::vector<std::vector<std::size_t>> messages;
  for (auto count = list.tensors.rbegin(); count != list.tensors.rend(); ++count) {
    const bool fits =
        !messages.empty() && bytes_of(messages.back()) + *count * sizeof(float) <= limit;
    if (!fits) messages.emplace_back();
    messages.back().push_back(*count);
  }
  return messages;
}

/// A run on all ranks.
class Setups {
 public:
  Setups(Session& session, const GpuAccess& access, const Config& config, std::size_t bytes)
      : session_(session), config_(config) {
    session_.alike([&] { bench_.emplace(session_, access, bytes); });
    hand_overs_ = bench_->connect();
    make(access);
  }

  const GpuBench& bench() const { return *bench_; }
  /// Before this is destroyed, also after a CommonError. Collective.
  void end() { bench_->end(); }
  const std::vector<std::string>& left_out() const { return left_out_; }

  Table size_table() const {
    Table table;
    table.add("bytes", "bytes");
    table.add_times(timed_names(names_, kHandOverNames), "us", 2);
    return table;
  }
  Table class_table() const {
    Table table;
    table.add("messages", "class");
    table.add("number", "messages");
    table.add("bytes", "bytes");
    table.add_times(timed_names(names_, {}), "ms", 3);
    return table;
  }

  Json size_row(std::size_t bytes) {
    const std::vector<std::size_t> counts = {bytes / sizeof(float)};
    const std::map<std::string, Samples> times = measure(counts, hand_overs_);
    Json row = {{"benchmark", "setups"},
                {"ranks", session_.topology().size},
                {"gpu", bench_->gpu_name()},
                {"bytes", bytes},
                {"iterations", times.begin()->second.size()}};
    add_times(row, times, "_us", 1.0);
    return row;
  }

  /// A row for each class of sizes, and one for all.
  std::vector<Json> class_rows(const GradientList& list) {
    struct Sum {
      std::size_t messages = 0;
      std::size_t bytes = 0;
      std::map<std::string, double> us;
    };
    std::array<Sum, kClasses.size() + 1> sums;
    for (const std::vector<std::size_t>& counts : messages_of(list, config_.fusion_bytes)) {
      const std::size_t bytes = bytes_of(counts);
      const auto which = std::find_if(kClasses.begin(), kClasses.end(),
                                      [&](const SizeClass& each) { return bytes <= each.most; });
      const std::map<std::string, Samples> times = measure(counts, {});
      for (Sum* const sum :
           {&sums[static_cast<std::size_t>(which - kClasses.begin())], &sums.back()}) {
        sum->messages += 1;
        sum->bytes += bytes;
        for (const auto& [name, samples] : times) sum->us[name] += median(samples);
      }
    }
    std::vector<Json> rows;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].messages == 0) continue;
      Json row = {{"benchmark", "setups"},
                  {"ranks", session_.topology().size},
                  {"gpu", bench_->gpu_name()},
                  {"model", list.model},
                  {"class", i < kClasses.size() ? kClasses[i].title : "all"},
                  {"messages", sums[i].messages},
                  {"bytes", sums[i].bytes}};
      std::map<std::string, Samples> times;
      for (const auto& [name, us] : sums[i].us) times[name] = {us};
      add_times(row, times, "_ms", 1e-3);
      rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  void make(const GpuAccess& access) {
    const BackendRegistry known = gpu_setups(config_, access.symbols, access.kernel_image);
    names_ = wanted_of(known);
    for (const std::string& name : names_) {
      const auto found = known.find(name);
      const auto& problem = found->second.problem;
      std::string why = session_.peers().first_of(problem ? problem() : std::string());
      if (why.empty()) why = try_out(name, found->second);
      if (!why.empty()) left_out_.push_back(name + ": " + why);
    }
  }

  /// Throws UsageError for one that there is not.
  std::vector<std::string> wanted_of(const BackendRegistry& known) const {
    const std::vector<std::string>& asked = session_.options().setups;
    for (const std::string& name : asked) {
      if (known.contains(name)) continue;
      std::string text = "--setup: there is no set-up \"" + name + "\"; use one of:";
      for (const auto& [each, factory] : known) text += " " + each;
      throw UsageError(text);
    }
    return asked.empty() ? usual_names() : asked;
  }

  /// What goes wrong with the first operation, on the first rank where it does.
  std::string try_out(const std::string& name, const BackendFactory& factory) {
    Backend& backend = session_.raw().add(factory);
    std::string error;
    try {
      bench_->reduce(backend, std::array<std::size_t, 1>{1}, name);
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    error = session_.peers().first_of(error);
    if (error.empty()) setups_.push_back({name, &backend});
    return error;
  }

  std::map<std::string, Samples> measure(const std::vector<std::size_t>& counts,
                                         const std::vector<std::size_t>& hand_overs) {
    const std::size_t bytes = bytes_of(counts);
    std::vector<std::string> names = {"copy"};
    std::vector<Contender> contenders = {{[this, bytes] { bench_->copy(bytes); }}};
    for (const std::size_t which : hand_overs) {
      names.push_back(kHandOverNames[which]);
      contenders.push_back({[this, which] { bench_->hand_over(which); }});
    }
    for (const Setup& setup : setups_) {
      bench_->check(*setup.backend, counts, setup.name);
      names.push_back(setup.name);
      contenders.push_back(
          {[this, &setup, &counts] { bench_->reduce(*setup.backend, counts, setup.name); }});
    }
    const BenchOptions& options = session_.options();
    const auto samples = take_turns(session_.peers(), contenders, options.warmup,
                                    options.iterations.value_or(kIterations));
    std::map<std::string, Samples> times;
    for (std::size_t i = 0; i < names.size(); ++i) times[names[i]] = samples[i];
    return times;
  }

  void add_times(Json& row, const std::map<std::string, Samples>& times, const std::string& unit,
                 double factor) const {
    const auto time_of_setup = [&](const std::string& name) {
      const auto found = times.find(name);
      return found == times.end() ? Json() : Json(median(found->second) * factor);
    };
    for (const std::string& name : timed_names(names_, kHandOverNames)) {
      row[name + unit] = time_of_setup(name);
    }
    for (const std::string slow : {"mpi", "mpi-reg", "mpi-opt-nocache"}) {
      const Json time = row.value(slow + unit, Json());
      const Json fast = row.value("mpi-opt" + unit, Json());
      const bool both = time.is_number() && fast.is_number();
      row[slow + "_over_mpi-opt"] = both ? Json(time.get<double>() / fast.get<double>()) : Json();
    }
  }

  Session& session_;
  const Config config_;
  std::optional<GpuBench> bench_;
  std::vector<std::size_t> hand_overs_;  ///< kinds that work
  std::vector<std::string> names_;       ///< that are wanted
  std::vector<Setup> setups_;
  std::vector<std::string> left_out_;
};

void sweep(Session& session, Setups& setups, std::vector<Json>& rows) {
  const Table table = setups.size_table();
  Report report = session.report(table.columns);
  report.say("allreduce, f32, " + session.description() + ", on " + setups.bench().gpu_name());
  for (const std::string& text : setups.left_out()) report.say("left out: " + text);
  if (setups.bench().is_shared()) {
    report.say(
        "ranks share this GPU and run on it in turns: waiting for each other costs them time "
        "slices, most of all by kernels. Which way is faster with a GPU each, this cannot tell.");
  }
  report.print_titles();
  const BenchOptions& options = session.options();
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 2) {
    if (bytes < sizeof(float)) continue;
    rows.push_back(setups.size_row(bytes));
    report.add(rows.back());
    if (bytes > options.max_bytes / 2) break;
  }
}

void exchange(Session& session, Setups& setups, const GradientList& list, std::vector<Json>& rows) {
  const Table table = setups.class_table();
  Report report = session.report(table.columns);
  report.say("all gradients of " + std::string(list.model) + ", fused, by the size of messages");
  report.print_titles();
  for (const Json& row : setups.class_rows(list)) {
    rows.push_back(row);
    report.add(row);
  }
}

}  // namespace

void run_setups(Session& session, const GpuAccess& access) {
  const BenchOptions& options = session.options();
  const Config config = load_config_from_environment().config;
  std::size_t bytes = options.max_bytes;
  for (const std::string& model : options.models) {
    for (const std::vector<std::size_t>& counts :
         messages_of(gradient_list(model), config.fusion_bytes)) {
      bytes = std::max(bytes, bytes_of(counts));
    }
  }
  Setups setups(session, access, config, bytes);
  std::vector<Json> rows;
  try {
    sweep(session, setups, rows);
    for (const std::string& model : options.models) {
      exchange(session, setups, gradient_list(model), rows);
    }
  } catch (const CommonError&) {
    setups.end();
    throw;
  }
  setups.end();
  Report all({}, nullptr);
  for (Json& row : rows) all.add(std::move(row));
  session.write_json(all);
}

}  // namespace ronde::tool

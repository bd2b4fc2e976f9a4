// SPDX-License-Identifier: Apache-2.0
// `ronde tune --collectives`. The ranks run on a backend that takes the algorithm which is named
// for each call in turn. Rank 0 chooses and writes; the others only take part.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/src/tuned_file.h"
#include "backends/compose.h"
#include "ronde/ronde.h"
#include "tools/bench/base/bench_options.h"
#include "tools/bench/base/report.h"
#include "tools/bench/bench.h"
#include "tools/bench/session/session.h"
#include "tools/commands.h"
#include "tools/tune/smooth.h"

namespace ronde::tool {
namespace {

constexpr const char* kVariable = "RONDE_ALGORITHMS";
constexpr const char* kBackend = "fabric_in_turn";

struct Options {
  std::size_t min_bytes = 256;
  std::size_t max_bytes = std::size_t{16} << 20;
  std::string out = "ronde_tuned.json";  ///< the file for RONDE_TUNED
  bool collectives = false;
  std::vector<std::string> command;  ///< of a user who expects that a program is tuned
};

/// The algorithm of the calls that start now. Written by the thread that submits them, while none
/// is under way.
struct Turn {
  Collective collective = Collective::Barrier;
  std::optional<Algorithm> algorithm;
  std::uint64_t call_bytes = 0;  ///< the largest call of the backend: a part of a large operation
};

/// Makes a backend over the fabric that the job's own backends would use.
BackendFactory backend_in_turn(const std::shared_ptr<Turn>& turn) {
  const auto in_turn = [turn](Collective collective,
                              std::uint64_t bytes) -> std::optional<Algorithm> {
    if (collective != turn->collective || !turn->algorithm) return std::nullopt;
    turn->call_bytes = std::max(turn->call_bytes, bytes);
    return turn->algorithm;
  };
  BackendFactory factory;
  factory.serves_sets = true;
  factory.create = [in_turn, made = std::make_shared<BackendFactory>()](BackendContext& context) {
    if (context.set == kGlobalSet.id) {
      const Config config = load_config_from_environment().config;
      *made = fabric_backend_factory(compose_built_in(config).fabric, {.in_turn = in_turn});
    }
    return made->create(context);
  };
  return factory;
}

/// Sets the variables for a job that is measured and not tuned.
void set_environment() {
  constexpr int kReplace = 1;
  constexpr int kKeepWhatIsSet = 0;
  setenv("RONDE_CPU_BACKEND", kBackend, kReplace);
  setenv("RONDE_AUTOTUNE", "0", kReplace);
  setenv("RONDE_FREEZE_AFTER_STEPS", "0", kReplace);
  setenv("RONDE_LOG_LEVEL", "warning", kKeepWhatIsSet);
  unsetenv("RONDE_TUNED");
}

/// Ranks that run collectives together.
struct Members {
  ProcessSet set = kGlobalSet;
  std::size_t ranks = 1;
  bool has_this_rank = true;
  std::string text;
};

/// The ranks that are the first of their hosts.
std::vector<int> first_of_hosts(const Topology& topology) {
  std::vector<int> first;
  for (int rank = 0; rank < topology.size; ++rank) {
    const auto begin = topology.host_of.begin();
    if (std::find(begin, begin + rank, begin[rank]) == begin + rank) first.push_back(rank);
  }
  return first;
}

/// Replaces every value by its maximum over all ranks.
void maximum(std::vector<double>& values) {
  Request request;
  request.name = "tune: times " + std::to_string(values.size());
  request.op = ReduceOp::Max;
  request.dtype = DataType::F64;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.input = request.output = values.data();
  run(std::move(request));
}

class CollectiveTuning {
 public:
  CollectiveTuning(const Options& options, std::shared_ptr<Turn> turn)
      : options_(options),
        turn_(std::move(turn)),
        topology_(ronde::topology()),
        report_(topology_.rank == 0 ? &std::cout : nullptr) {}

  /// Returns the exit code.
  int run() {
    const std::vector<int> first = first_of_hosts(topology_);
    Members all;
    all.ranks = static_cast<std::size_t>(topology_.size);
    all.text = std::to_string(all.ranks) + " ranks";
    if (all.ranks == 1) {
      throw UsageError(
          "--collectives: a rank that is alone sends nothing. Start it as your job starts, such as "
          "by mpiexec -n 4 ronde tune --collectives");
    }
    if (options_.min_bytes > options_.max_bytes) throw UsageError("--min is above --max");
    check_file();
    Members hosts = all;
    hosts.ranks = first.size();
    const bool are_levels = first.size() > 1 && hosts.ranks < all.ranks;
    if (are_levels) {
      // Between hosts the default backend allreduces among ranks of equal local rank.
      hosts.set = add_process_set(first);
      hosts.has_this_rank = rank_in(hosts.set).has_value();
      hosts.text = std::to_string(hosts.ranks) + " hosts";
      measure(Collective::Allreduce, hosts);
    } else if (first.size() == 1) {
      report_.say(
          "all ranks are on one host, where shared memory moves their data: rules between them "
          "count with RONDE_CPU_BACKEND=fabric");
    }
    for (const Collective collective :
         {Collective::Allreduce, Collective::Broadcast, Collective::Allgather,
          Collective::Reducescatter, Collective::Alltoall}) {
      measure(collective, all);
    }
    return write();
  }

 private:
  using Times = std::vector<std::vector<double>>;  ///< seconds, by size and algorithm

  /// Returns rank 0's text on all ranks.
  std::string said_by_first(std::string text) const {
    std::vector<double> length = {topology_.rank == 0 ? static_cast<double>(text.size()) : 0};
    maximum(length);
    text.resize(static_cast<std::size_t>(length[0]));
    if (text.empty()) return text;
    Request request;
    request.kind = Collective::Broadcast;
    request.name = "tune: text";
    request.dtype = DataType::U8;
    request.shape = {static_cast<std::int64_t>(text.size())};
    request.input = request.output = text.data();
    ronde::run(std::move(request));
    return text;
  }

  /// Rank 0 reads the file, whose other settings are kept.
  void open_file() {
    std::string problem;
    const auto known = read_tuned(options_.out, problem);
    if (!problem.empty()) {
      throw UsageError("--out: " + options_.out + " has been written before, and " + problem +
                       ". Remove it, or name another file");
    }
    if (known) settings_ = *known;
    const bool is_new = settings_.ranks == 0;
    const bool fits = settings_.ranks == topology_.size && settings_.hosts == topology_.hosts();
    if (!is_new && !fits) {
      throw UsageError("--out: " + options_.out + " was tuned for " +
                       std::to_string(settings_.ranks) + " ranks on " +
                       std::to_string(settings_.hosts) +
                       " hosts, and these are others. Remove it, or name another file");
    }
    settings_.ranks = topology_.size;
    settings_.hosts = topology_.hosts();
  }

  /// Throws UsageError on every rank if the file is of no use.
  void check_file() {
    std::string problem;
    try {
      if (topology_.rank == 0) open_file();
    } catch (const UsageError& error) {
      problem = error.what();
    }
    problem = said_by_first(problem);
    if (!problem.empty()) throw UsageError(problem);
  }

  void measure(Collective collective, const Members& members) {
    std::vector<Algorithm> algorithms;
    for (const Algorithm algorithm : algorithms_of(collective)) {
      if (suits(collective, algorithm, members.ranks)) algorithms.push_back(algorithm);
    }
    std::vector<std::uint64_t> sizes;
    Times times;
    noise_.clear();
    for (std::uint64_t bytes = options_.min_bytes; bytes <= options_.max_bytes; bytes *= 2) {
      turn_->call_bytes = 0;
      std::vector<double> of_size = measure(collective, members, bytes, algorithms);
      // Larger ones run in calls of this size.
      std::vector<double> call = {static_cast<double>(turn_->call_bytes)};
      maximum(call);
      if (call[0] < static_cast<double>(bytes)) break;
      sizes.push_back(bytes);
      times.push_back(std::move(of_size));
    }
    if (topology_.rank == 0) add_rules(collective, members, algorithms, sizes, times);
  }

  /// Returns the median time of each algorithm; they take turns, and the slowest rank counts.
  std::vector<double> measure(Collective collective, const Members& members, std::uint64_t bytes,
                              const std::vector<Algorithm>& algorithms) {
    constexpr double kSeconds = 0.3;  // for all algorithms of a size
    constexpr double kFewest = 5;
    constexpr double kMost = 25;
    const std::size_t count = algorithms.size();
    const auto take_turns = [&](std::size_t turns) {
      std::vector<double> times(turns * count);
      for (std::size_t i = 0; i < times.size() && members.has_this_rank; ++i) {
        const std::size_t who = (i + i / count) % count;  // who begins changes
        times[i / count * count + who] =
            time_of(request_of(collective, members, bytes), members, algorithms[who]);
      }
      maximum(times);
      return times;
    };
    take_turns(1);  // names are new, and pages
    double once = 0;
    for (const double time : take_turns(1)) once += time;
    const auto turns = static_cast<std::size_t>(std::clamp(kSeconds / once, kFewest, kMost));
    const std::vector<double> times = take_turns(turns);
    std::vector<double> medians;
    for (std::size_t who = 0; who < count; ++who) {
      std::vector<double> of_one;
      for (std::size_t turn = 0; turn < turns; ++turn) of_one.push_back(times[turn * count + who]);
      medians.push_back(median(of_one));
      std::ranges::sort(of_one);
      const double spread = std::log(of_one[3 * turns / 4] / of_one[turns / 4]);  // of quartiles
      noise_.push_back(spread / std::sqrt(static_cast<double>(turns)));
    }
    return medians;
  }

  /// Measures from when all members are ready until this rank is done.
  double time_of(Request request, const Members& members, Algorithm algorithm) {
    using Clock = std::chrono::steady_clock;
    float one = 0;
    Request ready;
    ready.name = "tune: ready";
    ready.shape = {1};
    ready.input = ready.output = &one;
    ready.set = members.set;
    ronde::run(std::move(ready));
    turn_->collective = request.kind;
    turn_->algorithm = algorithm;
    const auto start = Clock::now();
    ronde::run(std::move(request));
    const std::chrono::duration<double> time = Clock::now() - start;
    turn_->algorithm.reset();
    return time.count();
  }

  Request request_of(Collective collective, const Members& members, std::uint64_t bytes) {
    const std::size_t elements =
        std::max<std::size_t>((bytes + sizeof(float) - 1) / sizeof(float), 1);
    const std::size_t share = (elements + members.ranks - 1) / members.ranks;
    const bool is_whole =
        collective == Collective::Allreduce || collective == Collective::Broadcast;
    const std::size_t all = is_whole ? elements : share * members.ranks;
    input_.resize(std::max(input_.size(), all));
    output_.resize(input_.size());
    Request request;
    request.kind = collective;
    request.name = "tune: " + std::string(to_string(collective)) + " " + std::to_string(bytes);
    request.shape = {static_cast<std::int64_t>(collective == Collective::Allgather ? share : all)};
    request.input = input_.data();
    request.output = is_whole ? input_.data() : output_.data();
    request.set = members.set;
    return request;
  }

  void add_rules(Collective collective, const Members& members,
                 const std::vector<Algorithm>& algorithms, const std::vector<std::uint64_t>& sizes,
                 const Times& times) {
    constexpr double kLeastGain = 1.1;
    if (sizes.empty()) return;
    report_.say("\n" + std::string(to_string(collective)) + " of " + members.text +
                ", medians in us:");
    std::vector<Column> columns = {{"bytes", "bytes"}};
    for (const Algorithm algorithm : algorithms) {
      const std::string name(to_string(algorithm));
      columns.push_back({name, name, 1});
    }
    columns.push_back({"rule from here on", "rule"});
    report_.begin_table(columns);
    const std::vector<std::size_t> chosen =
        smooth_choices(times, std::log(kLeastGain) + 2 * median(noise_));
    for (std::size_t size = 0; size < sizes.size(); ++size) {
      const bool begins = size == 0 || chosen[size] != chosen[size - 1];
      Json row = {{"bytes", size_text(sizes[size])}, {"rule", nullptr}};
      for (std::size_t i = 0; i < algorithms.size(); ++i) {
        row[std::string(to_string(algorithms[i]))] = times[size][i] * 1e6;
      }
      if (begins) {
        const Algorithm algorithm = algorithms[chosen[size]];
        rules_.push_back({collective, members.ranks, size == 0 ? 0 : sizes[size], algorithm});
        row["rule"] = to_string(algorithm);
      }
      report_.add(std::move(row));
    }
  }

  int write() {
    std::string problem;
    if (topology_.rank == 0 && rules_.empty()) {
      problem =
          "is not written: no call of the backend has as many bytes as --min, as larger "
          "operations run in parts";
    } else if (topology_.rank == 0) {
      const std::string rules = format_algorithm_rules(rules_);
      report_.say(std::string("\n") + kVariable + "=" + rules);
      settings_.values[kVariable] = rules;
      problem = write_tuned(options_.out, settings_);
    }
    problem = said_by_first(problem);
    if (problem.empty()) {
      report_.say("written: " + options_.out + "; use it with RONDE_TUNED=" + options_.out);
      return EXIT_SUCCESS;
    }
    if (topology_.rank == 0) complain("ronde tune", options_.out + ": " + problem);
    return EXIT_FAILURE;
  }

  const Options& options_;
  const std::shared_ptr<Turn> turn_;
  const Topology& topology_;
  Report report_;
  TunedSettings settings_;  ///< of the file
  std::vector<float> input_, output_;
  std::vector<double> noise_;  ///< of each median of a collective, as a part of it
  std::vector<AlgorithmRule> rules_;
};

/// Measures the algorithms of collectives between the ranks that the launcher has started, over
/// the fabric of the job, and writes rules for RONDE_ALGORITHMS to the file. Collective.
int tune_collectives(const Options& options) {
  const auto turn = std::make_shared<Turn>();
  set_environment();
  register_backend(kBackend, backend_in_turn(turn));
  init();
  int code = EXIT_FAILURE;
  try {
    code = CollectiveTuning(options, turn).run();
  } catch (const UsageError&) {  // of every rank
    shutdown();
    throw;
  }
  shutdown();
  return code;
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
  return exit_code_of(
      "ronde tune", [&] { return tune_collectives(options); }, launched_rank() == 0);
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
  tune.add_option("--out", options->out, "the file to write, for RONDE_TUNED")
      ->capture_default_str();
  add_size(tune, "--min", "the smallest size", options->min_bytes);
  add_size(tune, "--max", "the largest size; each is twice the one before", options->max_bytes);
  tune.add_option("command", options->command, "not taken: no program is started");
  tune.positionals_at_end();
  tune.allow_extras();  // run() says what to do instead
  tune.callback([options, &tune, &exit_code] { exit_code = run(tune, *options); });
}

}  // namespace ronde::tool

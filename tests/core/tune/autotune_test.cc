// SPDX-License-Identifier: Apache-2.0
// RONDE_AUTOTUNE and RONDE_TUNED end to end: ranks as threads, each with a Runtime.
#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <set>

#include "core/src/tune/autotuner.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/repeated_steps.h"

using namespace ronde;
using namespace ronde::test;

namespace {

constexpr int kRanks = 3;
constexpr int kTensors = 12;
constexpr const char* kFusion = "RONDE_FUSION_BYTES";

Config tuning_config() {
  Config config = test_config();
  config.autotune = true;
  config.log_level = "warning";
  return config;
}

/// What rank 0 was told.
struct Told {
  std::vector<TuneTrial> trials;
  std::vector<TunedSettings> settings;
  std::atomic<bool> finished{false};  ///< for any thread
};

void listen(RuntimeOptions& options, Told& told) {
  options.tuning.on_trial = [&told](const TuneTrial& trial) { told.trials.push_back(trial); };
  options.tuning.on_tuned = [&told](const TunedSettings& tuned) {
    told.settings.push_back(tuned);
    told.finished = tuned.finished;
  };
}

/// Ranks on these hosts that take steps, which rank 0 marks, until it has taken `least` and
/// `is_enough` there: an allreduce in each step tells all ranks.
void run_steps(const std::vector<int>& host_of, int least, const std::function<bool()>& is_enough,
               const std::function<RuntimeOptions(RuntimeOptions, int rank)>& adapt,
               const std::function<void(Runtime&)>& at_end, const Config& config) {
  const inproc::Group group(host_of);
  std::latch done(static_cast<std::ptrdiff_t>(host_of.size()));  // a shutdown thaws
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  run_ranks(static_cast<int>(host_of.size()), [&](int rank) {
    Runtime runtime(adapt(options_of(group, rank, config), rank));
    RepeatedSteps steps(runtime, kTensors);
    std::vector<float> enough = {0};
    for (int step = 0; enough[0] == 0; ++step) {
      steps.run(step);
      const bool is_late = std::chrono::steady_clock::now() > limit;
      enough[0] = rank == 0 && ((step + 1 >= least && is_enough()) || is_late) ? 1 : 0;
      runtime.run(sum_request(enough, "enough"));
      runtime.mark_step();
    }
    at_end(runtime);
    done.arrive_and_wait();
    runtime.shutdown();
  });
}

bool at_once() {
  return true;
}

/// The tensors of a few more steps share buckets, as they do by the defaults.
bool fuses(Runtime& runtime) {
  constexpr int kSteps = 5;
  RepeatedSteps steps(runtime, kTensors);
  const std::uint64_t before = counter_of(runtime, "execution", "buckets");
  for (int step = 0; step < kSteps; ++step) steps.run(step);
  return counter_of(runtime, "execution", "buckets") - before < kSteps * kTensors;
}

}  // namespace

TEST_CASE("settings change while ranks work, on all at the same decision, until the search ends") {
  const bool one_host = GENERATE(true, false);
  CAPTURE(one_host);
  Told told;
  std::mutex mutex;
  std::set<std::uint64_t> buckets, thaws;
  const auto adapt = [&](RuntimeOptions options, int rank) {
    if (rank == 0) listen(options, told);
    return options;
  };
  const auto at_end = [&](Runtime& runtime) {
    const std::lock_guard lock(mutex);
    buckets.insert(counter_of(runtime, "execution", "buckets"));
    if (one_host) thaws.insert(schedule_counter(runtime, "thaws"));
  };
  const std::vector<int> hosts = one_host ? std::vector<int>{0, 0, 0} : std::vector<int>{0, 1, 1};
  run_steps(
      hosts, 1, [&] { return told.finished.load(); }, adapt, at_end, tuning_config());
  CHECK(buckets.size() == 1);
  if (one_host) CHECK(thaws.size() == 1);
  REQUIRE(told.settings.size() >= 3);  // after the first measurement, and each phase
  CHECK_FALSE(told.settings.front().finished);
  CHECK(told.settings.back().finished);
  CHECK(told.settings.back().ranks == kRanks);
  CHECK(told.settings.back().hosts == (one_host ? 1 : 2));
  CHECK(told.settings.back().model.size() == 16);
  std::set<std::string> tried;
  for (const TuneTrial& trial : told.trials) tried.insert(trial.values.at(kFusion));
  CHECK(tried.size() > 3);
}

TEST_CASE("rank 0's tuned file holds for all ranks, but not against what the user has set") {
  const bool is_fixed = GENERATE(false, true);
  TunedSettings known;
  known.values = {{kFusion, "4kB"}, {"RONDE_CYCLE_TIME_MS", "7"}};
  Config config = test_config();
  config.tuned = "a.json";
  Told told;
  const auto adapt = [&](RuntimeOptions options, int rank) {
    options.tuning.fixed =
        rank == 0 && is_fixed ? std::vector<std::string>{kFusion} : std::vector<std::string>();
    if (rank != 0) return options;
    options.tuning.known = known;
    listen(options, told);
    return options;
  };
  const auto at_end = [&](Runtime& runtime) {
    check_equal(runtime.config().fusion_bytes, is_fixed ? Config().fusion_bytes : 4000, "bytes");
    check_equal(runtime.config().cycle_time_ms, 7.0, "cycle time");
  };
  run_steps({0, 0, 0}, 5, at_once, adapt, at_end, config);
  CHECK(told.settings.empty());
}

TEST_CASE("a tuned file for other ranks, another model or of nonsense is told of and left") {
  const std::string what = GENERATE("ranks", "model", "nonsense", "unfinished");
  CAPTURE(what);
  const CapturedErrors errors;
  TunedSettings known;
  known.values = {{kFusion, what == "nonsense" ? "many" : "4B"}};
  known.finished = what != "unfinished";
  known.ranks = what == "ranks" ? 4 : kRanks;
  known.hosts = 1;
  known.model = "0123456789abcdef";
  Config config = test_config();
  config.tuned = "a.json";
  config.log_level = "warning";
  const auto adapt = [&](RuntimeOptions options, int rank) {
    if (rank == 0) options.tuning.known = known;
    return options;
  };
  const auto at_end = [&](Runtime& runtime) { check(fuses(runtime), "the defaults hold"); };
  run_steps({0, 0, 0}, 12, at_once, adapt, at_end, config);
  const std::string text = errors.text();
  CHECK_THAT(text, Catch::Contains("RONDE_TUNED: a.json"));
  const std::map<std::string, std::string> reasons = {
      {"ranks", "tuned for 4 ranks on 1 host, and these are 3 ranks on 1"},
      {"model", "for another model (0123456789abcdef, and this is "},
      {"unfinished", "RONDE_AUTOTUNE=1 goes on with it"},
      {"nonsense", "\"many\""}};
  CHECK_THAT(text, Catch::Contains(reasons.at(what)));
  CHECK(text.find("a.json") == text.rfind("a.json"));
}

namespace {

RuntimeOptions tuning_options() {
  RuntimeOptions options;
  options.config = tuning_config();
  return options;
}

/// An Autotuner by itself, and its clock.
struct LoneTuner {
  LoneTuner() { listen(options, told); }

  bool finished() const { return !told.settings.empty() && told.settings.back().finished; }
  /// Rank 0's loop looks after so long, when that many bytes were moved.
  void look(std::chrono::milliseconds after, std::uint64_t bytes) {
    now += after;
    tuner.process_steps(false, bytes, now);
    const auto wanted = tuner.wanted();
    if (!wanted || !can_change) return;
    in_force = *wanted;
    tuner.on_applied();
    ++changes;
  }
  std::chrono::milliseconds step_time() const {
    const bool fast = in_force.fusion_bytes <= std::uint64_t{8} << 20;
    return std::chrono::milliseconds(fast ? 50 : 100);
  }
  void mark(std::chrono::milliseconds after) {
    tuner.record_step(now + after);
    look(after, 0);
  }
  void check_found() const {
    REQUIRE(finished());
    CHECK(changes > 10);
    CHECK(parse_bytes(told.settings.back().values.at(kFusion)) <= std::uint64_t{8} << 20);
  }

  Told told;
  RuntimeOptions options = tuning_options();
  Topology topology;
  Logger log{LogLevel::Warning};
  Autotuner tuner{options, topology, log, false};
  TimePoint now = TimePoint() + std::chrono::hours(1);
  Tuning in_force = tuning_of(options.config);
  bool can_change = true;
  int changes = 0;
};

constexpr int kMostLooks = 20'000;

}  // namespace

TEST_CASE("a program that marks no step is measured by the bytes that it moves") {
  LoneTuner lone;
  std::uint64_t bytes = 0;
  for (int i = 0; i < kMostLooks && !lone.finished(); ++i) {
    if (i % 300 == 299) bytes = 0;  // a process set is removed
    lone.look(lone.step_time(), bytes += 1000);
  }
  lone.check_found();
  CHECK(lone.told.trials.front().step_s == Approx(0.5));
  for (const TuneTrial& trial : lone.told.trials) {
    CHECK(trial.step_s > 0.24);
    CHECK(trial.step_s < 0.51);
  }
}

TEST_CASE("marks count, however late the first one comes") {
  LoneTuner lone;
  std::uint64_t bytes = 0;
  // Much is moved at a time within the first step, and in a second one measurements have begun.
  for (int i = 0; i < 200; ++i) {
    lone.look(std::chrono::milliseconds(i == 0 ? 600 : 1), bytes += 1000);
  }
  CHECK(lone.told.trials.empty());
  for (int i = 0; i < kMostLooks && lone.told.trials.size() < 3; ++i) {
    lone.look(std::chrono::milliseconds(50), bytes += 1000);
  }
  lone.told.trials.clear();
  for (int i = 0; i < kMostLooks && !lone.finished(); ++i) lone.mark(lone.step_time());
  lone.check_found();
  CHECK(lone.told.trials.front().number == 1);
  CHECK(lone.told.trials.front().step_s == Approx(0.1));
}

TEST_CASE("settings that no decision can change, and steps that take turns, are warned of once") {
  struct Row {
    bool can_change;
    int odd_ms;
    std::string warning;
  };
  for (const auto& [can_change, odd_ms, warning] :
       {Row{false, 10, "no operation of all ranks came for 50 steps"},
        Row{true, 30, "every other step takes more than twice as long"}}) {
    const CapturedErrors errors;
    LoneTuner lone;
    lone.can_change = can_change;
    for (int i = 0; i < 300; ++i) lone.mark(std::chrono::milliseconds(i % 2 == 0 ? 10 : odd_ms));
    const std::string text = errors.text();
    CHECK_THAT(text, Catch::Contains(warning));
    CHECK(text.find(warning) == text.rfind(warning));
  }
}

TEST_CASE("a file of rules for algorithms belongs to no model, and its rules are kept") {
  const bool searches = GENERATE(true, false);
  const bool is_there = GENERATE(true, false);
  const bool ended = GENERATE(true, false);
  CAPTURE(searches, is_there, ended);
  LoneTuner lone;
  TunedSettings known;
  known.finished = ended;
  known.values = {{"RONDE_ALGORITHMS", "allreduce:ring"}};
  known.ranks = known.hosts = 1;
  if (is_there) lone.options.tuning.known = known;
  lone.options.config.autotune = searches;
  for (int i = 0; i < kMostLooks && !lone.finished(); ++i) lone.mark(lone.step_time());
  REQUIRE(lone.finished() == searches);
  REQUIRE(lone.told.settings.empty() != searches);
  if (!searches) return;
  const TunedSettings& found = lone.told.settings.back();
  CHECK(found.keeps_file == is_there);
  CHECK(found.values.size() == (is_there ? 4 : 3));
  CHECK(found.values.contains("RONDE_ALGORITHMS") == is_there);
}

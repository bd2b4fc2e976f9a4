// SPDX-License-Identifier: Apache-2.0
// RONDE_AUTOTUNE and RONDE_TUNED end to end: ranks as threads, each with a Runtime.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <latch>
#include <set>

#include "core/src/engine/autotuner.h"
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
  // The file did not say for whom it is; now it does.
  REQUIRE(told.settings.size() == 1);
  CHECK(told.settings.front().values == known.values);
  CHECK(told.settings.front().ranks == kRanks);
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
  if (what == "ranks") {
    CHECK_THAT(text, Catch::Contains("tuned for 4 ranks on 1 host, and these are 3 ranks on 1"));
  } else if (what == "model") {
    CHECK_THAT(text, Catch::Contains("for another model (0123456789abcdef, and this is "));
  } else if (what == "unfinished") {
    CHECK_THAT(text, Catch::Contains("RONDE_AUTOTUNE=1 goes on with it"));
  } else {
    CHECK_THAT(text, Catch::Contains("\"many\""));
  }
  CHECK(text.find("a.json") == text.rfind("a.json"));
}

TEST_CASE("a program that marks no step is measured by the bytes that it moves") {
  RuntimeOptions options;
  options.config = tuning_config();
  Told told;
  listen(options, told);
  Topology topology;
  const Logger log(LogLevel::Off);
  Autotuner tuner(options, topology, log, false);
  auto now = Autotuner::TimePoint() + std::chrono::hours(1);
  std::uint64_t bytes = 0;
  Tuning in_force = tuning_of(options.config);
  int changes = 0;
  for (int i = 0; i < 20'000 && (told.settings.empty() || !told.settings.back().finished); ++i) {
    const bool fast = in_force.fusion_bytes <= std::uint64_t{8} << 20;
    now += std::chrono::milliseconds(fast ? 50 : 100);
    tuner.take_steps(false, bytes += 1000, now);
    if (const auto wanted = tuner.wanted()) {
      in_force = *wanted;
      tuner.note_applied();
      ++changes;
    }
  }
  CHECK(changes > 10);
  REQUIRE_FALSE(told.settings.empty());
  CHECK(told.settings.back().finished);
  CHECK(parse_bytes(told.settings.back().values.at(kFusion)) <= std::uint64_t{8} << 20);
  CHECK(told.trials.front().step_s == Approx(0.5));
}

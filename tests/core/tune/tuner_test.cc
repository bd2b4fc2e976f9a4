// SPDX-License-Identifier: Apache-2.0
#include "core/src/tune/tuner.h"

#include <catch2/catch.hpp>

#include "core/src/tune/autotuner.h"

using namespace ronde;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const Tuning kStart = {kMiB, 50, 0};
const Tuning kDefaults = {64 * kMiB, 1, 3};

Tuner tuner_of(bool may_freeze) {
  const std::vector<Tuning> starts = {kStart, kDefaults};
  return {tune_space(starts, {}, may_freeze), starts, may_freeze};
}

}  // namespace

TEST_CASE("variables that are set stay, and without a choice there is no search") {
  const TuneSpace all = tune_space({kStart, kDefaults}, {}, true);
  CHECK(all.fusion_bytes.front() == kMiB);
  CHECK(all.fusion_bytes.back() == 256 * kMiB);
  CHECK(all.cycle_time_ms.back() == 50);
  CHECK(all.freeze_after_steps == std::vector<std::uint64_t>{0, 3});
  CHECK(all.tuning_at(all.point_of(kDefaults)) == kDefaults);
  const TuneSpace fixed = tune_space({kStart}, {"RONDE_CYCLE_TIME_MS"}, false);
  CHECK(fixed.cycle_time_ms == std::vector<double>{50});
  CHECK(fixed.freeze_after_steps == std::vector<std::uint64_t>{0});
  const std::vector<Tuning> starts = {kStart};
  const Tuner tuner(tune_space(starts, {"RONDE_FUSION_BYTES", "RONDE_CYCLE_TIME_MS"}, false),
                    starts, false);
  CHECK(tuner.finished());
  CHECK_FALSE(tuner.wanted());
}

TEST_CASE("after a change some steps pass, fewer once a schedule is frozen again") {
  Tuner tuner = tuner_of(true);
  // Frozen twice in a row ends the warm-up.
  CHECK_FALSE(tuner.record_step(9, true));
  CHECK_FALSE(tuner.record_step(9, true));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(tuner.record_step(1, true));
  CHECK(tuner.record_step(1, true));
  REQUIRE(tuner.wanted());
  CHECK(*tuner.wanted() == kDefaults);
  for (int i = 0; i < 10; ++i) CHECK_FALSE(tuner.record_step(9, true));  // still the old settings
  tuner.on_applied();
  std::size_t steps = 1;
  while (!tuner.record_step(1, false)) ++steps;
  CHECK(steps == 1 + 3 + 2 + Tuner::kSteps);
}

TEST_CASE("steps of two kinds that take turns are measured together, and a slow one is left out") {
  Tuner tuner = tuner_of(false);
  const auto measured = [&](std::vector<double> times) {
    std::optional<TuneTrial> trial;
    if (tuner.wanted()) {
      tuner.on_applied();
      tuner.record_step(9, false);
    }
    for (const double time : times) trial = tuner.record_step(time, false);
    REQUIRE(trial);
    return trial->step_s;
  };
  for (std::size_t i = 0; i < Tuner::kWarmUp; ++i) tuner.record_step(9, false);
  CHECK(measured({1, 2, 1, 2}) == 1.5);
  CHECK(measured({2, 1, 2, 9}) == 1.5);
  CHECK(tuner.alternating() == 0);
  CHECK(measured({1, 2.5, 1.2, 3}) == 1.75);
  CHECK(measured({5, 1, 5, 1}) == 3);
  CHECK(tuner.alternating() == 2);
}

TEST_CASE("a model's signature depends on names, shapes and types, not on the order") {
  const auto signature = [](std::vector<std::pair<std::string, std::int64_t>> tensors,
                            DataType dtype = DataType::F32) {
    ModelSignature made;
    for (const auto& [name, elements] : tensors) {
      Request request;
      request.name = name;
      request.dtype = dtype;
      request.shape = {elements};
      made.add(spec_of(request));
    }
    return made.text();
  };
  CHECK(signature({}).empty());
  CHECK(signature({{"a", 1}, {"b", 2}}) == signature({{"b", 2}, {"a", 1}, {"a", 1}}));
  CHECK(signature({{"a", 1}}).size() == 16);
  CHECK(signature({{"a", 1}}) != signature({{"b", 1}}));
  CHECK(signature({{"a", 1}}) != signature({{"a", 2}}));
  CHECK(signature({{"a", 1}}) != signature({{"a", 1}}, DataType::F64));
}

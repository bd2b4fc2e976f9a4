// SPDX-License-Identifier: Apache-2.0
#include "core/src/tune/tuner.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ronde {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostFusion = 256 * kMiB;
constexpr std::array kCycleTimes = {0.0, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0};
constexpr std::uint64_t kFreezeAfter = 3;
/// Steps until a schedule is frozen, beside those that must repeat before.
constexpr std::size_t kStepsToFreeze = 2;

constexpr const char* kFusion = "RONDE_FUSION_BYTES";
constexpr const char* kCycle = "RONDE_CYCLE_TIME_MS";
constexpr const char* kFreeze = "RONDE_FREEZE_AFTER_STEPS";

template <typename Value>
std::size_t index_of(const std::vector<Value>& values, Value value) {
  const auto found = std::ranges::find(values, value);
  return found != values.end() ? static_cast<std::size_t>(found - values.begin()) : 0;
}

const char* name_of(TuneSearch::Phase phase) {
  if (phase == TuneSearch::Phase::Arms) return "arms";
  return phase == TuneSearch::Phase::Neighbours ? "neighbours" : "confirm";
}

}  // namespace

Tuning tuning_of(const Config& config) {
  return {config.fusion_bytes, config.cycle_time_ms, config.freeze_after_steps};
}

std::map<std::string, std::string> values_of(const Tuning& tuning) {
  Config config;
  config.fusion_bytes = tuning.fusion_bytes;
  config.cycle_time_ms = tuning.cycle_time_ms;
  config.freeze_after_steps = tuning.freeze_after_steps;
  std::map<std::string, std::string> values;
  for (const ConfigEntry& entry : config_table()) {
    const bool is_tuned = entry.name == kFusion || entry.name == kCycle || entry.name == kFreeze;
    if (is_tuned) values[entry.name] = entry.get(config);
  }
  return values;
}

TuneSearch::Point TuneSpace::point_of(const Tuning& tuning) const {
  return {index_of(fusion_bytes, tuning.fusion_bytes),
          index_of(cycle_time_ms, tuning.cycle_time_ms),
          index_of(freeze_after_steps, tuning.freeze_after_steps)};
}

Tuning TuneSpace::tuning_at(const TuneSearch::Point& point) const {
  return {fusion_bytes.at(point.at(0)), cycle_time_ms.at(point.at(1)),
          freeze_after_steps.at(point.at(2))};
}

TuneSpace tune_space(const std::vector<Tuning>& starts, const std::vector<std::string>& fixed,
                     bool may_freeze) {
  // What one variable may be, in order: what it is at the starts, and `others`; if it is held,
  // what it is at the first start.
  const auto values = [&](bool is_held, auto Tuning::*variable, auto others) {
    if (is_held) return decltype(others){starts.front().*variable};
    for (const Tuning& start : starts) others.push_back(start.*variable);
    std::ranges::sort(others);
    others.erase(std::ranges::unique(others).begin(), others.end());
    return others;
  };
  const auto is_fixed = [&fixed](const char* name) {
    return std::ranges::find(fixed, name) != fixed.end();
  };
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = kMiB; bytes <= kMostFusion; bytes *= 2) sizes.push_back(bytes);
  return {values(is_fixed(kFusion), &Tuning::fusion_bytes, sizes),
          values(is_fixed(kCycle), &Tuning::cycle_time_ms,
                 std::vector(kCycleTimes.begin(), kCycleTimes.end())),
          values(is_fixed(kFreeze) || !may_freeze, &Tuning::freeze_after_steps,
                 std::vector<std::uint64_t>{0, kFreezeAfter})};
}

namespace {

TuneSearch search_of(const TuneSpace& space, const std::vector<Tuning>& starts) {
  std::vector<TuneSearch::Point> points;
  for (const Tuning& start : starts) points.push_back(space.point_of(start));
  return {{space.fusion_bytes.size(), space.cycle_time_ms.size(), space.freeze_after_steps.size()},
          std::move(points)};
}

}  // namespace

Tuner::Tuner(TuneSpace space, const std::vector<Tuning>& starts, bool may_freeze)
    : space_(std::move(space)),
      may_freeze_(may_freeze),
      search_(search_of(space_, starts)),
      current_(space_.point_of(starts.front())) {}

std::optional<TuneTrial> Tuner::record_step(double seconds, bool frozen) {
  if (finished()) return std::nullopt;
  ++steps_;
  if (wanted()) return std::nullopt;  // not yet applied by the ranks
  const bool is_settled = std::exchange(was_frozen_, frozen) && frozen;
  if (discard_ > 0) {
    discard_ = is_settled ? 0 : discard_ - 1;
    return std::nullopt;
  }
  times_.push_back(seconds);
  if (times_.size() < kSteps) return std::nullopt;
  const double step_s = std::min(times_[0] + times_[1], times_[2] + times_[3]) / 2;
  const auto [even_least, even_most] = std::minmax(times_[0], times_[2]);
  const auto [odd_least, odd_most] = std::minmax(times_[1], times_[3]);
  if (even_least > 2 * odd_most || odd_least > 2 * even_most) ++alternating_;
  TuneTrial trial{search_.measurements() + 1,
                  steps_,
                  name_of(search_.phase()),
                  values_of(space_.tuning_at(current_)),
                  step_s,
                  times_.size()};
  times_.clear();
  search_.record(step_s);
  return trial;
}

std::optional<Tuning> Tuner::wanted() const {
  const TuneSearch::Point& point = finished() ? search_.best() : search_.next();
  if (point == current_) return std::nullopt;
  return space_.tuning_at(point);
}

void Tuner::on_applied() {
  current_ = finished() ? search_.best() : search_.next();
  const std::uint64_t freezes = space_.tuning_at(current_).freeze_after_steps;
  discard_ = 1 + (may_freeze_ && freezes > 0 ? freezes + kStepsToFreeze : 0);
  was_frozen_ = false;
}

TunedSettings Tuner::settings() const {
  TunedSettings settings;
  settings.values = values_of(space_.tuning_at(search_.best()));
  settings.finished = finished();
  settings.step_s = search_.time_of(search_.best());
  settings.start_step_s = search_.time_of(search_.reference());
  return settings;
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/tune/search.h"
#include "ronde/config.h"
#include "ronde/tuning.h"

namespace ronde {

Tuning tuning_of(const Config& config);
/// By the names of the variables.
std::map<std::string, std::string> values_of(const Tuning& tuning);

/// What a search may try: the values of each setting, in their order. Of a setting that stays as it
/// is there is one.
struct TuneSpace {
  std::vector<std::uint64_t> fusion_bytes;
  std::vector<double> cycle_time_ms;
  std::vector<std::uint64_t> freeze_after_steps;

  TuneSearch::Point point_of(const Tuning& tuning) const;
  Tuning tuning_at(const TuneSearch::Point& point) const;
};

/// Every value between `starts`, up to 256 MiB and 50 ms, but for the variables in `fixed`.
/// `may_freeze`: there can be a frozen schedule.
TuneSpace tune_space(const std::vector<Tuning>& starts, const std::vector<std::string>& fixed,
                     bool may_freeze);

/// Searches while a program runs: takes the times of steps, one after the other, and says which
/// settings should hold next. It has no clock. After each change it lets some steps pass, until a
/// schedule is frozen again, and then takes a few as one measurement: the faster of two pairs of
/// steps, as one pair may be interrupted, and steps of two kinds may take turns (two optimizers).
///
/// Thread-safety: none.
class Tuner {
 public:
  /// Steps of a measurement.
  static constexpr std::size_t kSteps = 4;
  /// Steps that pass before the first one: the response cache fills, and buffers are made.
  static constexpr std::size_t kWarmUp = 5;

  /// Begins with the first of `starts`.
  Tuner(TuneSpace space, const std::vector<Tuning>& starts, bool may_freeze);

  /// A step took so long. `frozen`: a schedule was kept at its end. Returns what was measured, if a
  /// measurement ended with it.
  std::optional<TuneTrial> note_step(double seconds, bool frozen);

  /// What should hold instead of what does; nothing if all is well.
  std::optional<Tuning> wanted() const;
  /// wanted() holds from now on.
  void note_applied();

  bool finished() const noexcept { return search_.finished(); }
  /// The fastest so far, and once finished what to keep.
  TunedSettings settings() const;
  /// As TuneSearch::gain().
  double gain() const noexcept { return search_.gain(); }
  /// The number of steps so far.
  std::size_t steps() const noexcept { return steps_; }
  /// Of how many measurements every other step took more than twice as long as those between.
  std::size_t alternating() const noexcept { return alternating_; }

 private:
  const TuneSpace space_;
  const bool may_freeze_;
  TuneSearch search_;
  TuneSearch::Point current_;
  std::size_t discard_ = kWarmUp;
  bool was_frozen_ = false;
  std::vector<double> times_;
  std::size_t steps_ = 0;
  std::size_t alternating_ = 0;
};

}  // namespace ronde

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
/// Returns the settings by the names of their variables.
std::map<std::string, std::string> values_of(const Tuning& tuning);

/// The values of each setting that a search may try, ascending; a single one for a fixed setting.
struct TuneSpace {
  std::vector<std::uint64_t> fusion_bytes;
  std::vector<double> cycle_time_ms;
  std::vector<std::uint64_t> freeze_after_steps;

  TuneSearch::Point point_of(const Tuning& tuning) const;
  Tuning tuning_at(const TuneSearch::Point& point) const;
};

/// Returns every value from 1 MiB to 256 MiB and up to 50 ms, and those of `starts`, except for the
/// variables in `fixed`. `may_freeze`: a schedule can be frozen.
TuneSpace tune_space(const std::vector<Tuning>& starts, const std::vector<std::string>& fixed,
                     bool may_freeze);

/// Searches while a program runs: records the times of steps, and chooses the next settings. It has
/// no clock. After each change it discards some steps, until a schedule is frozen again, and then
/// uses a few as one measurement: the faster of two pairs of steps, as one pair may be interrupted,
/// and steps of two kinds may take turns (two optimizers).
class Tuner {
 public:
  /// Steps of a measurement.
  static constexpr std::size_t kSteps = 4;
  /// Steps that pass before the first one: the response cache fills, and buffers are made.
  static constexpr std::size_t kWarmUp = 5;

  /// Begins with the first of `starts`.
  Tuner(TuneSpace space, const std::vector<Tuning>& starts, bool may_freeze);

  /// Records the time of a step. `frozen`: a schedule was frozen at its end. Returns the
  /// measurement that ended with it, if any.
  std::optional<TuneTrial> record_step(double seconds, bool frozen);

  /// Returns the settings to change to; nullopt if they are in force.
  std::optional<Tuning> wanted() const;
  /// Called when wanted() has come into force.
  void on_applied();

  bool finished() const noexcept { return search_.finished(); }
  /// Returns the fastest settings so far; final once finished.
  TunedSettings settings() const;
  /// As TuneSearch::gain().
  double gain() const noexcept { return search_.gain(); }
  /// The number of steps so far.
  std::size_t steps() const noexcept { return steps_; }
  /// Returns the number of measurements in which every other step took more than twice as long as
  /// the steps between.
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

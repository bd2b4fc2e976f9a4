// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/src/agree/announcer.h"
#include "core/src/agree/messages.h"
#include "core/src/tune/model_signature.h"
#include "core/src/tune/tuner.h"
#include "ronde/log.h"
#include "ronde/runtime.h"
#include "ronde/topology.h"

namespace ronde {

/// Rank 0's part of RONDE_AUTOTUNE and RONDE_TUNED. Of the first steps it learns which model this
/// is, to know whether the file RONDE_TUNED is meant for it; then it feeds a Tuner.
///
/// Note [Steps of a program that marks none]
/// Such a program is measured by the bytes that it has moved: a step is as many of them as moved in
/// half a second at first. That choice is made after enough such intervals without a mark; a mark
/// that comes later begins the search anew.
///
/// Thread-safety: active(), note_step() and has_news() may be called from any thread; the rest is
/// owned by whoever runs the loop of rank 0.
class Autotuner {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `may_freeze`: a schedule can be frozen. The references outlive this.
  Autotuner(const RuntimeOptions& options, const Topology& topology, const Logger& log,
            bool may_freeze);

  /// Something may still change; once false it stays so.
  bool active() const noexcept { return active_.load(std::memory_order_relaxed); }
  /// A step of the program ends.
  void note_step(TimePoint now);
  /// take_steps() has something to take.
  bool has_news() const;

  /// Takes the steps that have ended. `frozen`: a schedule is kept; `bytes`: that were moved so
  /// far.
  void take_steps(bool frozen, std::uint64_t bytes, TimePoint now);
  /// Learns the model from what ranks agree on, `announcer` being that of this rank.
  void see(const DecisionMessage& decision, const Announcer& announcer);

  /// What all ranks shall change to; nothing if all is well.
  std::optional<Tuning> wanted() const;
  /// They do, with the decision that is made now.
  void note_applied();

 private:
  void begin_with_marks();
  void count_bytes(bool frozen, std::uint64_t bytes, TimePoint now);
  void note(double seconds, bool frozen);
  void identify();
  void begin_search();
  void note_whether_active();
  void report(const TuneTrial& trial);
  void tell_settings(TunedSettings settings) const;
  Tuning defaults() const;

  const RuntimeOptions& options_;
  const Topology& topology_;
  const Logger& log_;
  const bool may_freeze_;

  std::atomic<bool> active_{true};
  mutable std::mutex mutex_;
  std::vector<TimePoint> ends_;  ///< of steps; guarded by mutex_

  ModelSignature signature_;
  std::size_t decisions_ = 0;  ///< that it knows
  bool identified_ = false;
  bool keeps_file_ = false;  ///< TunedSettings::keeps_file
  std::size_t seen_ = 0;     ///< steps
  Tuning in_force_;
  std::optional<Tuning> fallback_;  ///< wanted, as the file is for another model
  std::optional<Tuner> tuner_;
  std::string phase_;                ///< of its last measurement
  bool told_of_turns_ = false;       ///< that steps of two kinds take turns
  std::size_t steps_to_change_ = 0;  ///< since wanted() began to wait

  // Note [Steps of a program that marks none].
  enum class Measure { Undecided, Marks, Bytes };
  Measure measure_ = Measure::Undecided;
  std::optional<TimePoint> since_;    ///< the step or interval began
  std::uint64_t bytes_at_start_ = 0;  ///< of the interval
  std::uint64_t interval_bytes_ = 0;
  std::size_t intervals_ = 0;
};

}  // namespace ronde

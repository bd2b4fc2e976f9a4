// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/src/agree/announcer.h"
#include "core/src/agree/messages.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/op/op_spec.h"
#include "core/src/tune/tuner.h"
#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/runtime.h"
#include "ronde/topology.h"

namespace ronde {

/// Returns rank 0's choice from the file RONDE_TUNED, as "NAME=value" lines for with_values(),
/// without the variables that the user has set. If the file cannot be used, or is for another
/// number of ranks or hosts, logs that, drops `options.tuning.known`, and returns an empty text.
std::string tuned_values(RuntimeOptions& options, const Topology& topology, const Logger& log);

/// Returns `config` with these values. Throws UsageError.
Config with_values(Config config, std::string_view lines);

/// A signature of a model: of the names, kinds, types and shapes of the operations that it submits
/// repeatedly, in whatever order. The same in every process and on every machine.
class ModelSignature {
 public:
  void add(const OpSpec& spec);
  /// Returns 16 digits; empty if nothing was added.
  std::string text() const;

 private:
  std::set<std::uint64_t> operations_;
};

/// Rank 0's part of RONDE_AUTOTUNE and RONDE_TUNED. Identifies the model in the first steps, to
/// find out whether the file RONDE_TUNED is meant for it; then it runs a Tuner.
///
/// Note [Steps of a program that marks none]
/// Such a program is measured by the bytes that it moves: a step is as many bytes as moved in the
/// first half second. That choice is made after enough such intervals without a mark; a later mark
/// restarts the search.
///
/// Thread-safety: active(), record_step() and has_steps() may be called from any thread; the rest
/// is owned by whoever runs the loop of rank 0.
class Autotuner {
 public:
  /// `may_freeze`: a schedule can be frozen. The references outlive this.
  Autotuner(const RuntimeOptions& options, const Topology& topology, const Logger& log,
            bool may_freeze);

  /// Returns whether settings may still change; once false it stays so.
  bool active() const noexcept { return active_.load(std::memory_order_relaxed); }
  /// Records the end of a step of the program.
  void record_step(TimePoint now);
  /// Returns whether steps are recorded that process_steps() has not processed.
  bool has_steps() const;

  /// Processes the recorded steps. `frozen`: a schedule is frozen; `bytes`: moved so far.
  void process_steps(bool frozen, std::uint64_t bytes, TimePoint now);
  /// Adds the operations of a decision to the model. `announcer`: that of this rank.
  void observe(const DecisionMessage& decision, const Announcer& announcer);

  /// Returns the settings that all ranks shall change to; nullopt if they have them.
  std::optional<Tuning> wanted() const;
  /// Called when all ranks change to wanted(), with the decision that is made now.
  void on_applied();

 private:
  void begin_with_marks();
  void count_bytes(bool frozen, std::uint64_t bytes, TimePoint now);
  void add_step(double seconds, bool frozen);
  void identify();
  void update_active();
  void report(const TuneTrial& trial);
  void publish_settings(TunedSettings settings) const;
  Tuning defaults() const;

  const RuntimeOptions& options_;
  const Topology& topology_;
  const Logger& log_;
  const bool may_freeze_;

  std::atomic<bool> active_{true};
  mutable std::mutex mutex_;
  std::vector<TimePoint> ends_;  ///< of steps; guarded by mutex_

  ModelSignature signature_;
  std::size_t decisions_ = 0;  ///< that were observed
  bool identified_ = false;
  bool keeps_file_ = false;  ///< TunedSettings::keeps_file
  std::size_t seen_ = 0;     ///< steps
  Tuning in_force_;
  std::optional<Tuning> fallback_;  ///< wanted if the file is for another model
  std::optional<Tuner> tuner_;
  std::string phase_;                ///< of its last measurement
  bool warned_of_turns_ = false;     ///< of steps of two kinds that take turns
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

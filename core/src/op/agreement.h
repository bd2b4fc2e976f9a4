// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/src/op/submission.h"
#include "core/src/op/work_state.h"

namespace ronde {

/// A way in which the ranks agree on what they run next, as threads that submit and wait see it:
/// Negotiated, or a FrozenSchedule. The mutex of the SubmissionQueue guards it, so that what is
/// submitted has one order for both.
class Agreement {
 public:
  virtual ~Agreement() = default;

  enum class Intake {
    Deviates,  ///< it does not belong here: the other agreement has it
    Taken,
    Due  ///< taken, and the loop has to look
  };
  /// Takes the submission over, unless it Deviates. The mutex is held.
  virtual Intake put(Submission& submission) = 0;

  /// Somebody wants `work` done, so it is put off no longer: a thread that `waits` for it, or one
  /// that asks whether it is done. True: the loop has to look. The mutex is held.
  virtual bool expedite(const WorkState& work, bool waits) = 0;

  /// When the loop has to look: a past time if at once, nullopt if there is nothing. The mutex is
  /// held.
  virtual std::optional<std::chrono::steady_clock::time_point> due() const = 0;
};

/// Gathers submissions for negotiation: they are due together once the gather time has passed since
/// the first, the bytes fill a fusion buffer, or somebody waits for a result.
///
/// Thread-safety: none, the mutex of SubmissionQueue guards it.
class Negotiated final : public Agreement {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Negotiated(std::chrono::nanoseconds time, std::uint64_t bytes) { gather(time, bytes); }

  /// Gathers so long, or so much, from now on.
  void gather(std::chrono::nanoseconds time, std::uint64_t bytes) noexcept {
    time_ = time;
    most_bytes_ = bytes;
  }

  Intake put(Submission& submission) override;
  /// Whoever waits wants everything at once; whoever asks, nothing.
  bool expedite(const WorkState& work, bool waits) override;
  /// What is here is due at once.
  void hurry() noexcept { is_urgent_ = true; }

  std::optional<TimePoint> due() const override;
  /// Takes all, in the order of put().
  std::vector<Submission> take();
  const std::vector<Submission>& waiting() const noexcept { return waiting_; }

 private:
  std::chrono::nanoseconds time_{};
  std::uint64_t most_bytes_ = 0;
  std::vector<Submission> waiting_;
  TimePoint first_;
  std::uint64_t bytes_ = 0;
  bool is_urgent_ = false;
};

}  // namespace ronde

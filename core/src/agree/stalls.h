// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/base/monotonic_clock.h"
#include "ronde/runtime.h"

namespace ronde {

/// An operation that some ranks submitted and others did not, as rank 0 knows it.
struct WaitingOperation {
  // As in StalledOperation.
  std::string name, text;
  Collective kind = Collective::Allreduce;
  std::vector<int> submitted_ranks, missing_ranks;  ///< of the group, ascending

  TimePoint since;
  bool needs_one = false;  ///< one of the missing ranks suffices: a recv from any rank
  bool may_last = false;   ///< reported, but never fatal
};

/// Orders operations by when they began to wait.
bool is_older(const WaitingOperation& a, const WaitingOperation& b);

/// Returns the failure of a group in which an operation waits for ranks that have called shutdown,
/// and so will never submit it. `not_shut_down`: the other ranks, ascending.
std::optional<FailureMessage> departure_of(const std::vector<WaitingOperation>& waiting,
                                           const std::vector<int>& not_shut_down);

/// Returns the error of an operation whose timeout has passed on `rank`, as `missing` had not
/// submitted `lacking` ("it", "no recv that fits").
std::string timeout_text(const std::string& operation, const std::string& rank, Duration waited,
                         const std::string& lacking, const std::vector<int>& missing);

/// How long an operation may wait for ranks, or be in progress: RONDE_STALL_ABORT_S, or longer.
///
/// Thread-safety: every member may be called from any thread.
class StallLimit {
 public:
  /// In seconds; 0: no limit.
  explicit StallLimit(double seconds) : limit_(Duration(from_s(seconds)).count()) {}

  std::optional<Duration> get() const noexcept {
    const Duration::rep limit = limit_.load(std::memory_order_relaxed);
    return limit > 0 ? std::optional(Duration(limit)) : std::nullopt;
  }

  /// In whole seconds; 0: no limit.
  std::uint64_t seconds() const noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::floor<std::chrono::seconds>(get().value_or(Duration(0))).count());
  }

  /// Makes it `least`, unless it is longer or there is none.
  void raise(Duration least) noexcept {
    Duration::rep limit = limit_.load(std::memory_order_relaxed);
    while (limit > 0 && limit < least.count() &&
           !limit_.compare_exchange_weak(limit, least.count(), std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<Duration::rep> limit_;
};

/// Finds operations that some ranks wait for and others do not submit, on rank 0. It has no clock
/// of its own.
class StallInspector {
 public:
  struct Finding {
    std::vector<StalledOperation> stalled;  ///< to be reported; empty most of the time
    std::optional<FailureMessage> fatal;    ///< the limit has passed: the group must fail
  };

  /// Ages in seconds; 0: never. Reports repeat every `warn_s`.
  StallInspector(double warn_s, double abort_s);

  void set_limit(std::optional<Duration> abort) noexcept { abort_ = abort; }

  /// Returns how often to call inspect() while operations wait; nullopt: never.
  std::optional<Duration> period() const;

  Finding inspect(const std::vector<WaitingOperation>& waiting, TimePoint now);

 private:
  const std::optional<Duration> warn_;
  std::optional<Duration> abort_;
  TimePoint quiet_until_{};
};

/// Returns a line for all operations that wait for the same ranks, with the names of the first few:
/// "allreduce 'x' has waited 31.5 s for ranks 2,3 (submitted by ranks 0,1)".
std::string stall_text(const std::vector<StalledOperation>& stalled);

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/src/negotiate/messages.h"
#include "core/src/negotiate/negotiator.h"
#include "ronde/runtime.h"

namespace ronde {

/// Finds operations that some ranks wait for and others do not submit. Rank 0 asks it from time to
/// time; it has no clock of its own.
///
/// Thread-safety: none.
class StallInspector {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  struct Finding {
    std::vector<StalledOperation> stalled;  ///< to be reported; empty most of the time
    std::optional<FailureMessage> fatal;    ///< the limit has passed: the group shall fail
  };

  /// Ages in seconds; 0: never. Reports repeat each `warn_s`.
  StallInspector(double warn_s, double abort_s);

  /// How often to call inspect() while operations wait; nullopt: never.
  std::optional<Duration> period() const;

  Finding inspect(const std::vector<WaitingOperation>& waiting, TimePoint now);

 private:
  const std::optional<Duration> warn_;
  const std::optional<Duration> abort_;
  TimePoint quiet_until_{};
};

/// "allreduce 'x' has waited 31.5 s for ranks 2,3 (submitted by ranks 0,1)": a line for all that
/// wait for the same ranks, with the names of the first few.
std::string stall_text(const std::vector<StalledOperation>& stalled);

}  // namespace ronde

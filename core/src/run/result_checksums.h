// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/events/event_log.h"
#include "core/src/op/submission.h"
#include "core/src/run/results.h"
#include "ronde/log.h"

namespace ronde {

/// With RONDE_VERIFY: the checksums of this rank's results, for rank 0, which compares them
/// (ResultComparison). Results are in host memory and the same on all ranks: those of allreduces,
/// broadcasts and allgathers.
///
/// Thread-safety: none.
class ResultChecksums {
 public:
  /// The references outlive this.
  ResultChecksums(const Results& results, const EventLog& events, const Logger& log)
      : results_(results), events_(events), log_(log) {}

  /// Numbers those that have such results, in the agreed order: alike on all ranks.
  void number(std::vector<Submission>& agreed);

  /// The backend has ended one of them, or failed in it; the program has not seen it yet.
  void add(const Submission& item, bool failed);

  bool empty() const noexcept { return ends_.empty(); }
  std::vector<ResultEnd> take() { return std::exchange(ends_, {}); }

 private:
  const Results& results_;
  const EventLog& events_;
  const Logger& log_;
  std::uint64_t numbers_ = 0;
  bool has_told_of_devices_ = false;
  std::vector<ResultEnd> ends_;
};

}  // namespace ronde

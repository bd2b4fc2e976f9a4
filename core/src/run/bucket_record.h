// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "core/src/base/counter.h"
#include "core/src/events/event_log.h"
#include "core/src/run/backend_calls.h"
#include "core/src/run/bucket.h"
#include "ronde/log.h"

namespace ronde {

/// What is written down of buckets: their numbers, counters, events and lines of the log.
///
/// Thread-safety: none (the counters: any thread).
class BucketRecord {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Counters {
    Counter buckets, tensors, fused_tensors, bytes, uncompressed_bytes, largest_bucket_bytes,
        skipped_tensors, busy_us;
  };

  /// The references outlive this.
  BucketRecord(const BackendCalls& calls, const Logger& log, EventLog& events)
      : calls_(calls), log_(log), events_(events) {}

  /// An operation that moves nothing.
  void note_skipped(const Submission& item);
  /// Gives the bucket its number.
  void note_agreed(Bucket& bucket);
  /// `is_alone`: no other one is in progress.
  void note_started(const Bucket& bucket, bool is_alone);
  void note_finished(Bucket& bucket, TimePoint now);

  const Counters& counters() const noexcept { return counters_; }

 private:
  const BackendCalls& calls_;
  const Logger& log_;
  EventLog& events_;
  TimePoint busy_since_{};                        ///< busy_us does not have it yet
  std::uint64_t collectives_ = 0, messages_ = 0;  ///< buckets of them
  Counters counters_;
};

}  // namespace ronde

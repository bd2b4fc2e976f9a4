// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/events/event_log.h"
#include "core/src/op/submission_queue.h"
#include "core/src/run/backend_calls.h"
#include "core/src/run/result_verification.h"
#include "ronde/log.h"

namespace ronde {

/// Runs agreed operations on the backends, fused. Buckets start in the agreed order, each as soon
/// as the backend takes one more (Capabilities::operations_in_flight), and end in any. Operations
/// on devices are completed once their device has reached the event at which their bucket ended; a
/// wait on a stream returns before that.
///
/// Thread-safety: none; owned by whoever runs the loop (the counters: any thread).
class Executor {
 public:
  using Clock = MonotonicClock;

  struct Counters {
    Counter buckets, tensors, fused_tensors, bytes, uncompressed_bytes, largest_bucket_bytes,
        skipped_tensors, busy_us, queued_on_devices, passed_on_devices;
  };

  /// `rank`, `size`: within the process set. `fusion_bytes`: most bytes in a bucket of several, 0:
  /// no fusion. `rank_of_group`: what this rank is called in texts. The references
  /// outlive this.
  Executor(Backends& backends, int rank, int size, std::uint64_t fusion_bytes, int rank_of_group,
           const Logger& log, SubmissionQueue& queue);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Sets the limit for later plans. Called on all ranks at the same decision.
  void set_fusion_bytes(std::uint64_t bytes) noexcept { fusion_bytes_ = bytes; }

  /// Turns checksums on (RONDE_VERIFY), before the first enqueue().
  void verify_results() { checksums_.emplace(results_, queue_.events(), log_); }
  /// The checksums since the last call of take_checksums().
  /// @{
  bool has_checksums() const noexcept { return checksums_ && !checksums_->empty(); }
  std::vector<ResultEnd> take_checksums() { return checksums_->take(); }
  /// @}

  /// Plans the operations of one decision, behind everything planned before.
  void enqueue(std::vector<Submission> agreed);

  /// Adds one bucket of a plan made before, or plans the operations of a group.
  void enqueue_bucket(std::vector<Submission> agreed, bool is_group);

  bool busy() const noexcept { return !buckets_.empty() || !on_devices_.empty(); }

  /// Returns how to wait while poll() makes no progress.
  Waiting waiting() const;

  /// Changes whenever poll() made progress.
  std::uint64_t progress() const;

  /// Starts and advances the first buckets, and completes operations that a device has finished,
  /// without blocking. Returns whether any operation ended. Throws ronde::Error if the backend
  /// failed, which is fatal to the group.
  bool poll();

  /// As BackendCalls::wire_bytes().
  std::uint64_t wire_bytes(const OpSpec& spec) const { return calls_.wire_bytes(spec); }

  /// Returns why a bucket in progress has taken too long: a timeout of one of its operations, or
  /// `limit` since it has been the oldest one. Empty if none has.
  std::string overdue(TimePoint now, std::optional<Duration> limit) const;

  /// Removes and returns all operations.
  std::vector<Submission> drain();

  /// Returns whether, after drain(), a device may still use the memory of the operations, until the
  /// backends have drained.
  bool has_begun_on_device() const noexcept { return began_on_device_; }

  const Counters& counters() const noexcept { return counters_; }

 private:
  /// An operation that a device works on.
  struct OnDevice {
    Submission item;
    std::exception_ptr error;
    std::shared_ptr<const DeviceEvent> event;
    TimePoint started;
  };

  void add_bucket(std::vector<Submission> items);
  void record_agreed(const Bucket& bucket);
  void record_started(const Bucket& bucket);
  void record_finished(Bucket& bucket, TimePoint now);
  void finish_what_moves_nothing(std::vector<Submission>& agreed);
  /// Ends the operation, whose work ended at `ended` with `error`.
  void finish(Submission& item, TimePoint ended, std::exception_ptr error = nullptr);
  bool may_start_next() const;
  void start_next();
  bool advance(Bucket& bucket);
  void end_running(std::size_t index);
  void queue_on_device(Bucket& bucket, const std::shared_ptr<const DeviceEvent>& event);
  std::exception_ptr deliver_on_device(OnDevice& queued) const;
  bool complete_passed();

  std::uint64_t fusion_bytes_;
  const Backends& backends_;
  const int rank_of_group_;
  const Logger& log_;
  const bool traces_ = log_.enabled(LogLevel::Trace);
  SubmissionQueue& queue_;
  const Results results_;
  std::optional<ResultChecksums> checksums_;
  BackendCalls calls_;
  std::deque<OnDevice> on_devices_;  ///< in the order in which their buckets ended
  std::deque<Bucket> buckets_;
  std::size_t running_ = 0;  ///< number of buckets in progress, which come first
  TimePoint first_since_{};  ///< since then the first bucket is the first, and in progress
  std::uint64_t ended_progress_ = 0;
  bool began_on_device_ = false;
  std::uint64_t collectives_ = 0, messages_ = 0;  ///< numbers of buckets
  TimePoint busy_since_{};                        ///< not yet in busy_us
  Counters counters_;
};

}  // namespace ronde

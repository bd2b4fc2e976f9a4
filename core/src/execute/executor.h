// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/events/event_log.h"
#include "core/src/execute/fusion_buffer.h"
#include "core/src/negotiate/announcer.h"
#include "ronde/log.h"
#include "ronde/plugin/backend.h"

namespace ronde {

/// Those of devices are first, as they are built on that of the CPU.
using Backends = std::map<DeviceKind, std::unique_ptr<Backend>, std::greater<>>;

/// Runs agreed operations on the backends, fused. Buckets start in the agreed order, each as soon
/// as the backend takes one more (Capabilities::operations_in_flight), and end in any.
///
/// Thread-safety: none; owned by the coordinator thread (the counters: any thread).
class Executor {
 public:
  using Clock = std::chrono::steady_clock;

  /// Called for every operation that ends; null: success.
  using Complete =
      std::function<void(Submission& submission, std::exception_ptr error, bool contributed)>;
  /// Called before that for one on a device, once the device will have its result.
  using Queued =
      std::function<void(Submission& submission, std::shared_ptr<const DeviceEvent> event)>;

  struct Counters {
    Counter buckets, tensors, fused_tensors, bytes, uncompressed_bytes, largest_bucket_bytes,
        skipped_tensors, busy_us, queued_on_device, passed_on_device;
  };

  /// `rank`, `size`: within the process set. `fusion_bytes`: most bytes in a bucket of several, 0:
  /// no fusion. `rank_of_group`: what this rank is called in texts. `log` and `events` stay longer
  /// than this.
  Executor(Backends& backends, int rank, int size, std::uint64_t fusion_bytes, int rank_of_group,
           const Logger& log, EventLog& events, Complete complete, Queued queued);

  /// Holds for what is planned from now on; the same on all ranks at the same decision.
  void set_fusion_bytes(std::uint64_t bytes) noexcept { fusion_bytes_ = bytes; }

  /// Plans what one decision agreed on, behind everything planned before.
  void enqueue(std::vector<Agreed> agreed);

  /// One bucket as it was planned before.
  void enqueue_bucket(std::vector<Agreed> agreed);

  bool busy() const noexcept { return !buckets_.empty() || !queued_.empty(); }

  /// How to wait while poll() gets on with nothing.
  Waiting waiting() const;

  /// Changes whenever poll() got on.
  std::uint64_t progress() const;

  /// Starts and advances the first buckets, and completes what a device has come to, without
  /// blocking; true if that finished anything. Throws ronde::Error if the backend failed, which is
  /// fatal to the group.
  bool poll();

  /// Bytes of such a tensor as the backend moves them.
  std::uint64_t wire_bytes(const RequestMeta& meta) const;

  /// Why a bucket in progress has taken too long: a timeout of one of its operations, or `limit`
  /// since it has been the oldest one. Empty if none has.
  std::string overdue(Clock::time_point now, std::optional<Clock::duration> limit) const;

  /// Removes and returns everything unfinished.
  std::vector<Submission> drain();

  /// After drain(): whether a device may still use memory of what it returned. Until the backends
  /// have drained then.
  bool has_begun_on_device() const noexcept { return began_on_device_; }

  const Counters& counters() const noexcept { return counters_; }

 private:
  struct Bucket {
    std::vector<Agreed> items;
    std::vector<Segment> segments;
    std::vector<std::size_t> counts;          ///< elements of every rank; alltoall: to every rank
    std::vector<std::size_t> receive_counts;  ///< alltoall: elements from every rank
    std::vector<std::byte> input;             ///< a copy, where the result would overwrite it
    std::vector<std::shared_ptr<const DeviceEvent>> after;  ///< on a device
    std::exception_ptr error;  ///< no memory for the result, or for `input`
    std::unique_ptr<Operation> operation;
    Clock::time_point started;
    std::uint64_t number = 0;  ///< Event::bucket
  };

  /// An operation that a device works on, as its backend has left it.
  struct OnDevice {
    Agreed item;
    std::exception_ptr error;
    std::shared_ptr<const DeviceEvent> event;
    Clock::time_point started;
  };

  std::vector<std::int64_t> result_shape(const Agreed& item) const;
  std::vector<std::int64_t> received_rows(const Agreed& item) const;
  void* output_of(Agreed& item) const;
  std::byte* output_of(Bucket& bucket) const;
  const void* input_beside(std::byte*& output, std::size_t input_bytes, std::size_t output_bytes,
                           Bucket& bucket) const;
  void expect_output(const Agreed& item) const;
  std::string no_memory_text(const Agreed& item, const std::string& what) const;
  void add_bucket(std::vector<Agreed> items);
  void note_finished(Bucket& bucket, Clock::time_point now);
  static bool completes_with(const Bucket& bucket);
  void finish_what_moves_nothing(std::vector<Agreed>& agreed);
  bool moves_nothing(const Agreed& item) const;
  std::uint64_t wire_bytes(const Agreed& item) const;
  std::uint64_t uncompressed_bytes(const Agreed& item) const;
  /// `error`: of what was done for it, which was over at `ended`.
  void finish(Agreed& item, Clock::time_point ended, std::exception_ptr error = nullptr);
  /// What there is to do once the result is there, or queued; returns what goes wrong with it.
  std::exception_ptr end(Agreed& item);
  std::exception_ptr end_on_device(OnDevice& queued);
  void queue_on_device(Bucket& bucket, const std::shared_ptr<const DeviceEvent>& event);
  bool finish_passed();
  std::string overdue_on_device(Clock::time_point now, std::optional<Clock::duration> limit) const;
  Placement place(Bucket& bucket, const Backend& backend) const;
  static const RequestMeta& meta_of(const Bucket& bucket);
  Capabilities capabilities_of(const Bucket& bucket) const;
  bool may_start_next() const;
  void start_next();
  void end_running(std::size_t index);
  void start(Bucket& bucket);
  Scaling final_scaling(const Agreed& item) const;
  std::unique_ptr<Operation> start_allreduce(Bucket& bucket, Backend& backend);
  std::unique_ptr<Operation> start_broadcast(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> start_allgather(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> start_alltoall(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> start_reducescatter(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> start_send(Bucket& bucket, Backend& backend) const;
  std::unique_ptr<Operation> start_recv(Bucket& bucket, Backend& backend) const;
  void count(const Bucket& bucket);
  EventRecord event_of(const Bucket& bucket, EventKind kind, Clock::time_point time) const;

  Backends& backends_;
  const int rank_;
  const int size_;
  std::uint64_t fusion_bytes_;
  const int rank_of_group_;
  const Logger& log_;
  EventLog& events_;
  const Complete complete_;
  const Queued tell_queued_;
  FusionBuffer scratch_;  ///< of operations that are composed of a backend's
  std::deque<Bucket> buckets_;
  std::size_t running_ = 0;          ///< of them, the first ones: those in progress
  Clock::time_point first_since_{};  ///< the first one is that, and in progress
  Clock::time_point busy_since_{};   ///< some are in progress, and busy_us does not have it
  std::uint64_t ended_progress_ = 0;
  std::deque<OnDevice> queued_;  ///< in the order in which they were queued
  bool began_on_device_ = false;
  std::uint64_t collectives_ = 0, messages_ = 0;  ///< buckets of them
  Counters counters_;
};

}  // namespace ronde

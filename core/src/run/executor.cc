// SPDX-License-Identifier: Apache-2.0
// The buckets: how they are planned, when the next one starts, how they are polled, and when they
// take too long.
#include "core/src/run/executor.h"

#include <algorithm>
#include <utility>

#include "core/src/agree/fusion_plan.h"

namespace ronde {
namespace {

/// Returns the elements of all ranks together; where their shapes are equal, those of one rank.
std::uint64_t elements_of_all(const Submission& item) {
  const std::vector<std::int64_t>& rows = item.rows->first_dims;
  if (rows.empty()) return element_count(item.spec().shape);
  return static_cast<std::uint64_t>(total_rows(rows)) * row_elements(item.spec().shape);
}

bool moves_nothing(const Submission& item) {
  return moves_no_data(item.spec().kind) || !item.contributed ||
         (!item.rows->has_splits() && elements_of_all(item) == 0);
}

/// Returns whether its operation starts several of a backend, at times of its own, or one of the
/// CPU beside those of a device: no other one may start meanwhile, for the sake of their order.
bool runs_alone(const Submission& item) {
  if (needs_exact_sum(item.spec())) return true;
  if (item.spec().kind == Collective::Allreduce) return item.spec().op == ReduceOp::Adasum;
  const bool may_have_splits =
      item.spec().kind == Collective::Alltoall && item.spec().device != DeviceKind::Cpu;
  return may_have_splits && item.rows->has_splits();
}

EventRecord event_of(const Bucket& bucket, EventKind kind, TimePoint time) {
  const OpSpec& spec = bucket.spec();
  return {.time_ns = EventLog::ns_of(time),
          .kind = kind,
          .collective = spec.kind,
          .set = spec.set,
          .bucket = bucket.number};
}

/// Returns whether the bucket ends its only operation.
bool completes_with(const Bucket& bucket) {
  if (bucket.items.size() > 1 || bucket.error || bucket.operation->event()) return false;
  const Submission& item = bucket.items.front();
  return item.work && !item.start.finish;
}

}  // namespace

Executor::Executor(Backends& backends, int rank, int size, std::uint64_t fusion_bytes,
                   int rank_of_group, const Logger& log, SubmissionQueue& queue)
    : fusion_bytes_(fusion_bytes),
      backends_(backends),
      rank_of_group_(rank_of_group),
      log_(log),
      queue_(queue),
      results_(rank, size, rank_of_group),
      calls_(backends, results_, rank, size, fusion_bytes) {}

void Executor::enqueue(std::vector<Submission> agreed) {
  if (checksums_) checksums_->number(agreed);
  finish_what_moves_nothing(agreed);
  if (agreed.size() < 2) return add_bucket(std::move(agreed));
  std::vector<PlanItem> plan;
  for (const Submission& item : agreed) {
    plan.push_back({item.key.spec, calls_.wire_bytes(item), item.average_over});
  }
  for (const std::vector<std::size_t>& indexes : plan_fusion(plan, fusion_bytes_)) {
    if (indexes.size() == agreed.size()) return add_bucket(std::move(agreed));
    std::vector<Submission> items;
    items.reserve(indexes.size());
    for (const std::size_t index : indexes) items.push_back(std::move(agreed[index]));
    add_bucket(std::move(items));
  }
}

void Executor::enqueue_bucket(std::vector<Submission> agreed, bool is_group) {
  if (is_group) return enqueue(std::move(agreed));
  finish_what_moves_nothing(agreed);
  add_bucket(std::move(agreed));
}

void Executor::add_bucket(std::vector<Submission> items) {
  if (items.empty()) return;
  Bucket& bucket = buckets_.emplace_back();
  bucket.items = std::move(items);
  // Messages concern two ranks, and must not count on the others.
  const bool is_message = is_point_to_point(bucket.spec().kind);
  bucket.number = is_message ? kMessageBucket + ++messages_ : ++collectives_;
  record_agreed(bucket);
}

void Executor::record_agreed(const Bucket& bucket) {
  if (!queue_.events().enabled()) return;
  EventRecord agreed = event_of(bucket, EventKind::Agreed, MonotonicClock::now());
  for (const Submission& item : bucket.items) {
    if (!item.work) continue;  // of a rank that has joined
    agreed.operation = item.number;
    agreed.rank = item.last_rank;
    queue_.events().write(agreed);
  }
}

void Executor::record_started(const Bucket& bucket) {
  EventRecord started = event_of(bucket, EventKind::Started, bucket.started);
  for (const Submission& item : bucket.items) {
    const OpSpec& spec = item.spec();
    const std::uint64_t bytes = calls_.wire_bytes(item);
    started.bytes += bytes;
    started.uncompressed_bytes +=
        spec.wire_dtype ? element_count(spec.shape) * size_of(spec.dtype) : bytes;
  }
  const Backend& backend = calls_.backend_of(bucket);
  queue_.events().write(started, backend.name());
  counters_.uncompressed_bytes.add(started.uncompressed_bytes);
  counters_.buckets.add();
  counters_.tensors.add(bucket.items.size());
  if (bucket.items.size() > 1) counters_.fused_tensors.add(bucket.items.size());
  counters_.bytes.add(started.bytes);
  counters_.largest_bucket_bytes.raise_to(started.bytes);
  if (!traces_) return;
  log_.trace("bucket of " + std::to_string(started.bytes) + " bytes over " +
             std::string(backend.name()) + ", " + text_of(bucket.items));
}

void Executor::record_finished(Bucket& bucket, TimePoint now) {
  const auto busy = std::chrono::duration_cast<std::chrono::microseconds>(now - busy_since_);
  counters_.busy_us.add(static_cast<std::uint64_t>(busy.count()));
  busy_since_ = now;
  const PackingTimes packing = bucket.operation->packing();
  EventRecord event = event_of(bucket, EventKind::Packed, now);
  event.duration_ns = packing.pack.count();
  if (event.duration_ns > 0) queue_.events().write(event);
  event.kind = EventKind::Unpacked;
  event.duration_ns = packing.unpack.count();
  if (event.duration_ns > 0) queue_.events().write(event);
  EventRecord finished = event_of(bucket, EventKind::Finished, now);
  if (completes_with(bucket)) {
    finished.operation = bucket.items.front().number;
    finished.then = ThenAlso::Completed;
    bucket.items.front().end_is_recorded = true;
  }
  queue_.events().write(finished);
}

void Executor::finish_what_moves_nothing(std::vector<Submission>& agreed) {
  bool is_any = false;
  for (Submission& item : agreed) {
    if (!moves_nothing(item)) continue;
    is_any = true;
    if (item.spec().kind != Collective::Barrier) counters_.skipped_tensors.add();
    finish(item, Clock::now());
  }
  if (is_any) std::erase_if(agreed, moves_nothing);
}

void Executor::finish(Submission& item, TimePoint ended, std::exception_ptr error) {
  const bool has_more_to_do = !error && item.contributed && item.start.finish;
  if (item.result_number > 0) checksums_->add(item, error != nullptr);
  if (!error) error = results_.deliver(item);
  item.ended = has_more_to_do ? Clock::now() : ended;
  complete(queue_, item, std::move(error), item.contributed);
}

/// Operations of different devices do not overlap, as a backend of a device may use that of the
/// CPU. While ranks exchange their rows, none knows when the data of the others starts, so no
/// operation starts in between.
bool Executor::may_start_next() const {
  if (running_ == buckets_.size()) return false;
  if (running_ == 0) return true;
  if (buckets_[running_ - 1].rows) return false;
  const Submission& next = buckets_[running_].items.front();
  const Submission& first = buckets_.front().items.front();
  const Backend& backend = calls_.backend_of(buckets_.front());
  return running_ < backend.capabilities().operations_in_flight &&
         next.spec().device == first.spec().device && !runs_alone(next) && !runs_alone(first);
}

void Executor::start_next() {
  while (may_start_next()) {
    Bucket& bucket = buckets_[running_];
    bucket.started = Clock::now();
    began_on_device_ = began_on_device_ || bucket.spec().device != DeviceKind::Cpu;
    bucket.operation = calls_.start(bucket);
    if (++running_ == 1) first_since_ = busy_since_ = bucket.started;
    record_started(bucket);
  }
}

bool Executor::poll() {
  bool has_ended = complete_passed();
  start_next();
  for (std::size_t i = 0; i < running_;) {
    if (advance(buckets_[i])) {
      end_running(i);
      has_ended = true;
    } else {
      ++i;
    }
  }
  if (has_ended) start_next();
  return has_ended;
}

/// Returns whether the bucket has ended.
bool Executor::advance(Bucket& bucket) {
  if (!bucket.operation->poll()) return false;
  if (!bucket.rows) return true;
  ended_progress_ += bucket.operation->progress() + 1;
  return !calls_.start_data(bucket) || bucket.operation->poll();
}

void Executor::end_running(std::size_t index) {
  const TimePoint now = Clock::now();
  Bucket& bucket = buckets_[index];
  record_finished(bucket, now);
  Bucket finished = std::move(bucket);
  buckets_.erase(buckets_.begin() + static_cast<std::ptrdiff_t>(index));
  --running_;
  if (index == 0) first_since_ = now;
  ended_progress_ += finished.operation->progress() + 1;
  const std::shared_ptr<const DeviceEvent> event = finished.operation->event();
  finished.operation.reset();
  if (event) return queue_on_device(finished, event);
  for (Submission& item : finished.items) finish(item, now, finished.error);
}

void Executor::queue_on_device(Bucket& bucket, const std::shared_ptr<const DeviceEvent>& event) {
  const std::size_t first = on_devices_.size();
  // All are queued before any is delivered: if the device fails meanwhile, drain() returns them.
  for (Submission& item : bucket.items) {
    on_devices_.push_back({std::move(item), bucket.error, event, Clock::now()});
  }
  for (std::size_t i = first; i < on_devices_.size(); ++i) {
    OnDevice& queued = on_devices_[i];
    if (!queued.error) queued.error = deliver_on_device(queued);
    counters_.queued_on_devices.add();
    if (!queued.error) mark_queued(queue_, queued.item, queued.event);
  }
}

/// Work that Request::finish queues belongs to the operation, which ends with it.
std::exception_ptr Executor::deliver_on_device(OnDevice& queued) const {
  const Start& start = queued.item.start;
  if (!start.finish) return results_.deliver(queued.item);
  queued.event->order(start.stream);
  std::exception_ptr error = results_.deliver(queued.item);
  const Backend& backend = *backends_.at(queued.item.spec().device);
  queued.event = backend.device_streams()->mark(queued.item.device_index, start.stream);
  return error;
}

bool Executor::complete_passed() {
  bool has_passed = false;
  while (!on_devices_.empty() && on_devices_.front().event->passed()) {
    OnDevice passed = std::move(on_devices_.front());
    on_devices_.pop_front();
    counters_.passed_on_devices.add();
    complete(queue_, passed.item, passed.error, passed.item.contributed);
    has_passed = true;
  }
  return has_passed;
}

Waiting Executor::waiting() const {
  // A device notifies no thread.
  const Waiting at_most = on_devices_.empty() ? Waiting::Bell : Waiting::Pause;
  if (buckets_.empty()) return at_most;
  if (running_ == 0 || may_start_next()) return Waiting::Poll;
  return std::min(at_most, calls_.backend_of(buckets_.front()).capabilities().waiting);
}

std::uint64_t Executor::progress() const {
  std::uint64_t progress =
      counters_.buckets.get() + counters_.passed_on_devices.get() + ended_progress_;
  for (std::size_t i = 0; i < running_; ++i) progress += buckets_[i].operation->progress();
  return progress;
}

std::string Executor::overdue(TimePoint now, std::optional<Duration> limit) const {
  const auto is_late = [now](const Submission& item) {
    return item.deadline && now >= *item.deadline;
  };
  for (const OnDevice& queued : on_devices_) {
    if (!is_late(queued.item) && (!limit || now - queued.started < *limit)) continue;
    return display_name(queued.item.key) + " has been queued on the GPU of rank " +
           std::to_string(rank_of_group_) + " for longer than " +
           (is_late(queued.item) ? "its timeout" : "RONDE_STALL_ABORT_S") +
           ": does the GPU hang, or wait for one that does?";
  }
  for (std::size_t i = 0; i < running_; ++i) {
    for (const Submission& item : buckets_[i].items) {
      if (!is_late(item)) continue;
      const bool is_sent = is_point_to_point(item.spec().kind);
      return display_name(item.key) +
             (is_sent ? " had begun on both ranks but did not end within its timeout on rank "
                      : " had begun on every rank but did not end within its timeout on rank ") +
             std::to_string(rank_of_group_);
    }
  }
  // Other buckets may wait for the first.
  if (running_ == 0 || !limit || now - first_since_ < *limit) return {};
  const Submission& first = buckets_.front().items.front();
  return display_name(first.key) + " has been in progress on rank " +
         std::to_string(rank_of_group_) + " for longer than RONDE_STALL_ABORT_S";
}

std::vector<Submission> Executor::drain() {
  std::vector<Submission> drained;
  for (OnDevice& queued : on_devices_) drained.push_back(std::move(queued.item));
  for (Bucket& bucket : buckets_) {
    for (Submission& item : bucket.items) drained.push_back(std::move(item));
  }
  on_devices_.clear();
  buckets_.clear();
  running_ = 0;
  return drained;
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
// The buckets in progress: when the next one starts, how they are polled, and when they take too
// long.
#include <algorithm>
#include <string>
#include <utility>

#include "core/src/execute/executor.h"

namespace ronde {
namespace {

/// Its operation starts several of the backend, at times of its own: no other one may start
/// meanwhile, for the sake of their order.
bool runs_alone(const RequestMeta& meta) {
  return meta.kind == Collective::Allreduce && meta.op == ReduceOp::Adasum;
}

}  // namespace

const RequestMeta& Executor::meta_of(const Bucket& bucket) {
  return bucket.items.front().submission.meta;
}

Capabilities Executor::capabilities_of(const Bucket& bucket) const {
  return backends_.at(meta_of(bucket).device)->capabilities();
}

/// A backend for devices may use that of the CPU: those of one device only run at once.
bool Executor::may_start_next() const {
  if (running_ == buckets_.size()) return false;
  if (running_ == 0) return true;
  const RequestMeta& next = meta_of(buckets_[running_]);
  const RequestMeta& first = meta_of(buckets_.front());
  return running_ < capabilities_of(buckets_.front()).operations_in_flight &&
         next.device == first.device && !runs_alone(next) && !runs_alone(first);
}

void Executor::start_next() {
  while (may_start_next()) {
    Bucket& bucket = buckets_[running_];
    start(bucket);
    if (++running_ == 1) first_since_ = busy_since_ = bucket.started;
  }
}

bool Executor::poll() {
  bool has_ended = finish_passed();
  start_next();
  for (std::size_t i = 0; i < running_;) {
    if (buckets_[i].operation->poll()) {
      end_running(i);
      has_ended = true;
    } else {
      ++i;
    }
  }
  if (has_ended) start_next();
  return has_ended;
}

void Executor::end_running(std::size_t index) {
  const Clock::time_point now = Clock::now();
  Bucket& bucket = buckets_[index];
  note_finished(bucket, now);
  Bucket finished = std::move(bucket);
  buckets_.erase(buckets_.begin() + static_cast<std::ptrdiff_t>(index));
  --running_;
  if (index == 0) first_since_ = now;
  ended_progress_ += finished.operation->progress() + 1;
  const std::shared_ptr<const DeviceEvent> event = finished.operation->event();
  finished.operation.reset();
  if (event) {
    queue_on_device(finished, event);
  } else {
    for (Agreed& item : finished.items) finish(item, now, finished.error);
  }
}

Waiting Executor::waiting() const {
  // What is queued on a device notifies nobody.
  const Waiting at_most = queued_.empty() ? Waiting::Bell : Waiting::Pause;
  if (buckets_.empty()) return at_most;
  if (running_ == 0 || may_start_next()) return Waiting::Poll;
  return std::min(at_most, capabilities_of(buckets_.front()).waiting);
}

std::uint64_t Executor::progress() const {
  std::uint64_t progress =
      counters_.buckets.get() + counters_.passed_on_device.get() + ended_progress_;
  for (std::size_t i = 0; i < running_; ++i) progress += buckets_[i].operation->progress();
  return progress;
}

std::string Executor::overdue(Clock::time_point now, std::optional<Clock::duration> limit) const {
  if (std::string text = overdue_on_device(now, limit); !text.empty()) return text;
  for (std::size_t i = 0; i < running_; ++i) {
    for (const Agreed& item : buckets_[i].items) {
      if (!item.submission.deadline || now < *item.submission.deadline) continue;
      const bool is_sent = is_point_to_point(item.submission.meta.kind);
      return display_name(item.submission.meta, item.submission.key) +
             (is_sent ? " had begun on both ranks but did not end within its timeout on rank "
                      : " had begun on every rank but did not end within its timeout on rank ") +
             std::to_string(rank_of_group_);
    }
  }
  // The others may wait for the first.
  if (running_ == 0 || !limit || now - first_since_ < *limit) return {};
  const Submission& first = buckets_.front().items.front().submission;
  return display_name(first.meta, first.key) + " has been in progress on rank " +
         std::to_string(rank_of_group_) +
         " for longer than RONDE_STALL_ABORT_S: is a rank stopped?";
}

std::vector<Submission> Executor::drain() {
  std::vector<Submission> drained;
  for (OnDevice& queued : queued_) drained.push_back(std::move(queued.item.submission));
  queued_.clear();
  for (Bucket& bucket : buckets_) {
    for (Agreed& item : bucket.items) drained.push_back(std::move(item.submission));
  }
  buckets_.clear();
  running_ = 0;
  return drained;
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/submission_queue.h"

#include <algorithm>
#include <utility>

#include "core/src/kernels/elementwise.h"

namespace ronde {

using Intake = Agreement::Intake;

SubmissionQueue::SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                                 std::function<void()> wake, EventLog& events)
    : events_(events),
      wake_(std::move(wake)),
      gather_time_(gather_time),
      gather_bytes_(gather_bytes) {}

void SubmissionQueue::push(Submission submission) {
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
  try {
    names_.reserve(submission);
    memory_.enter(submission);
  } catch (...) {
    names_.cancel(submission);
    throw;
  }
  counters_.submitted_bytes.add(submission.input_bytes);
  submission.after_wait = waited_.exchange(false, std::memory_order_relaxed);
  for_each_operation(submission, [this](Submission& operation) { enter(operation); });
  if (submission.is_group()) submission.number = submission.members.front().number;
  const bool quietly = submission.start.caller_waits;
  if (route(submission) == Intake::Due && !quietly) wake_locked();
}

void SubmissionQueue::enter(Submission& submission) {
  counters_.submitted.add();
  submission.number = ++submitted_;
  if (submission.work)
    submission.work->set_number(submission.number, submission.start.caller_waits);
  const OpSpec& spec = submission.spec();
  if (!spec.symmetric()) return;
  // The name is known to be free, and no peer can have reduced this buffer yet.
  Start& start = submission.start;
  const DataType dtype = real_type(spec.dtype);
  const std::size_t count = submission.input_bytes / size_of(dtype);
  if (!start.contributes) {
    fill_neutral(start.output, count, dtype, spec.op, false);
  } else if (const double factor = std::exchange(start.rank_factor, 1.0); factor != 1.0) {
    pack_elements(start.output, start.input, count, dtype, {factor, 1.0}, false);
  }
}

/// Note [The way of a submission].
Intake SubmissionQueue::route(Submission& submission) {
  if (first_asked_ != nullptr && submission.spec().set == kGlobalSet.id) {
    const Intake intake = first_asked_->put(submission);
    if (intake != Intake::Deviates) return intake;
  }
  record_submitted(events_, submission);
  const bool was_empty = gathered_.empty();
  const bool was_full = bytes_ >= gather_bytes_;
  if (was_empty) first_gathered_ = submission.submitted;
  bytes_ += submission.input_bytes;
  gathered_.push_back(std::move(submission));
  return was_empty || (!was_full && bytes_ >= gather_bytes_) ? Intake::Due : Intake::Taken;
}

std::optional<TimePoint> SubmissionQueue::gathered_due() const {
  if (gathered_.empty()) return std::nullopt;
  const bool is_due = is_urgent_ || bytes_ >= gather_bytes_;
  return is_due ? TimePoint() : first_gathered_ + gather_time_;
}

std::list<Submission> SubmissionQueue::take_gathered() {
  bytes_ = 0;
  is_urgent_ = false;
  return std::exchange(gathered_, {});
}

void SubmissionQueue::ask_first(Agreement* agreement) {
  const std::lock_guard lock(mutex_);
  first_asked_ = agreement;
}

void SubmissionQueue::hand_over(const std::function<std::vector<Submission>()>& change) {
  const std::lock_guard lock(mutex_);
  std::vector<Submission> earlier = change();
  const bool was_due = gathered_due() == TimePoint();
  std::list<Submission> later = take_gathered();
  std::vector<std::shared_ptr<WorkState>> awaited;
  const auto add_awaited = [&awaited](const Submission& operation) {
    if (operation.work && operation.work->is_awaited()) awaited.push_back(operation.work);
  };
  for (Submission& submission : earlier) for_each_operation(submission, add_awaited);
  for (Submission& submission : later) for_each_operation(submission, add_awaited);
  for (Submission& submission : earlier) route(submission);
  if (!gathered_.empty()) is_urgent_ = true;
  for (Submission& submission : later) route(submission);
  if (was_due && !gathered_.empty()) is_urgent_ = true;
  // A thread that already waits cannot expedite its operation where it is now.
  for (const std::shared_ptr<WorkState>& work : awaited) expedite_locked(*work, true);
}

bool SubmissionQueue::expedite(const WorkState& work, bool waits) noexcept {
  const std::lock_guard lock(mutex_);
  return expedite_locked(work, waits);
}

bool SubmissionQueue::expedite_locked(const WorkState& work, bool waits) {
  const bool is_flushed = waits && !gathered_.empty() && !std::exchange(is_urgent_, true);
  if (is_flushed) counters_.flushes.add();
  const bool is_found = first_asked_ != nullptr && first_asked_->expedite(work, waits);
  return is_flushed || is_found;
}

void SubmissionQueue::wake_locked() {
  counters_.wakes.add();
  if (wake_) wake_();
}

void SubmissionQueue::gather(std::chrono::nanoseconds time, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  gather_time_ = time;
  gather_bytes_ = bytes;
}

std::optional<TimePoint> SubmissionQueue::due() const {
  const std::lock_guard lock(mutex_);
  const std::optional<TimePoint> due = gathered_due();
  const auto first = first_asked_ != nullptr ? first_asked_->due() : std::nullopt;
  return due && first ? std::min(*due, *first) : due ? due : first;
}

std::list<Submission> SubmissionQueue::take(TimePoint now) {
  const std::lock_guard lock(mutex_);
  const std::optional<TimePoint> due = gathered_due();
  return due && *due <= now ? take_gathered() : std::list<Submission>();
}

void SubmissionQueue::release(Submission& submission) {
  const std::lock_guard lock(mutex_);
  names_.release(submission);
  memory_.leave(submission);
}

void SubmissionQueue::expect_open() const {
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
}

void SubmissionQueue::close(std::exception_ptr reason) {
  const std::lock_guard lock(mutex_);
  if (!closed_) closed_ = std::move(reason);
}

void SubmissionQueue::wake() noexcept {
  const std::lock_guard lock(mutex_);
  wake_locked();
}

void SubmissionQueue::detach() {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

void record_submitted(EventLog& events, Submission& submission, ThenAlso then) noexcept {
  for (Submission& member : submission.members) record_submitted(events, member, then);
  if (submission.is_group() || std::exchange(submission.is_recorded, true)) return;
  const OpSpec& spec = submission.spec();
  const auto waits = submission.start.caller_waits ? ThenAlso::WaitBegun : ThenAlso::Nothing;
  events.write(
      {.time_ns = EventLog::ns_of(submission.submitted),
       .kind = EventKind::Submitted,
       .collective = spec.kind,
       .then = static_cast<ThenAlso>(static_cast<unsigned>(then) | static_cast<unsigned>(waits)),
       .set = spec.set,
       .rank = is_point_to_point(spec.kind) ? spec.peer : -1,
       .operation = submission.number,
       .bytes = submission.input_bytes},
      submission.key.text());
}

void record_announced(EventLog& events, const Submission& operation, TimePoint time) noexcept {
  events.write({.time_ns = EventLog::ns_of(time),
                .kind = EventKind::Announced,
                .collective = operation.spec().kind,
                .set = operation.spec().set,
                .operation = operation.number});
}

void add_agreed(std::vector<Submission>& agreed, Submission submission, const SharedRows& rows,
                bool contributed, std::uint64_t digest, int average_over) {
  for (std::size_t i = 0; i < submission.members.size(); ++i) {
    add_agreed(agreed, std::move(submission.members[i]), rows.member(i), contributed, digest,
               average_over);
  }
  if (submission.is_group()) return;
  submission.rows = rows;
  submission.contributed = contributed;
  submission.average_over = average_over;
  submission.digest = submission.start.digest != 0 ? digest : 0;
  agreed.push_back(std::move(submission));
}

void mark_queued(SubmissionQueue& queue, Submission& submission,
                 std::shared_ptr<const DeviceEvent> event) {
  if (!submission.work) return;  // of a rank that has joined
  queue.release(submission);
  submission.is_released = true;
  if (submission.digest == kDigestsDiffer) submission.work->set_digests_differ();
  submission.work->set_queued(std::move(event));
}

void complete(SubmissionQueue& queue, Submission& submission, std::exception_ptr error,
              bool contributed) {
  for (Submission& member : submission.members) complete(queue, member, error, contributed);
  if (submission.is_group()) return;
  if (!submission.work) return;  // of a rank that has joined
  // The name is free and the owner of the buffers released before the end becomes visible.
  if (!submission.is_released) queue.release(submission);
  submission.start = {};
  if (!submission.end_is_recorded || error) {
    const bool was_run = submission.ended != TimePoint();
    const auto ended = was_run ? submission.ended : EventLog::Clock::now();
    queue.events().write({.time_ns = EventLog::ns_of(ended),
                          .kind = submission.is_abandoned ? EventKind::Abandoned
                                  : error                 ? EventKind::Failed
                                                          : EventKind::Completed,
                          .collective = submission.spec().kind,
                          .set = submission.spec().set,
                          .operation = submission.number});
  }
  // An operation that was queued already has its answer, which the program may be reading.
  if (!submission.is_released && submission.digest == kDigestsDiffer) {
    submission.work->set_digests_differ();
  }
  submission.work->complete(std::move(error), contributed);
}

std::string text_of(const std::vector<Submission>& submissions) {
  std::vector<std::string> names;
  for (const Submission& each : submissions) names.push_back(display_name(each.key));
  if (names.empty()) return "no operation";
  const std::string count = std::to_string(names.size());
  return count + (names.size() == 1 ? " operation: " : " operations: ") + first_few(names);
}

}  // namespace ronde

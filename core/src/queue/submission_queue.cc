// SPDX-License-Identifier: Apache-2.0
#include "core/src/queue/submission_queue.h"

#include <utility>

#include "core/src/kernels/elementwise.h"

namespace ronde {

using Intake = FrozenSchedule::Intake;

SubmissionQueue::SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                                 std::function<void()> wake, EventLog& events)
    : events_(events),
      gather_time_(gather_time),
      gather_bytes_(gather_bytes),
      wake_(std::move(wake)) {}

void SubmissionQueue::push(Submission submission) {
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
  names_.reserve(submission);
  counters_.submitted_bytes.add(input_bytes(submission));
  submission.after_wait = waited_.exchange(false, std::memory_order_relaxed);
  for (Submission& member : submission.members) enter(member);
  if (!submission.is_group()) enter(submission);
  const bool quietly = submission.request.caller_waits;
  const bool was_empty = waiting_.empty();
  const bool was_full = bytes_ >= gather_bytes_;
  const Intake intake = route(submission);
  const bool is_due = was_empty || (!was_full && bytes_ >= gather_bytes_);
  const bool has_news = intake == Intake::Deviates ? is_due : intake != Intake::Taken;
  if (has_news && !quietly) wake_locked();
}

void SubmissionQueue::enter(Submission& submission) {
  counters_.submitted.add();
  submission.number = ++submitted_;
  if (submission.work)
    submission.work->set_number(submission.number, submission.request.caller_waits);
  if (!submission.request.symmetric || submission.request.contributes) return;
  // The name is known to be free, and no peer can have reduced this buffer yet.
  const RequestMeta& meta = submission.meta;
  fill_neutral(submission.request.output, element_count(meta.shape), meta.dtype, meta.op, false);
}

/// Note [The way of a submission]. The schedule belongs to the global set.
Intake SubmissionQueue::route(Submission& submission) {
  const bool asks_schedule = schedule_ != nullptr && submission.meta.set == kGlobalSet.id;
  const Intake intake = asks_schedule ? schedule_->accept(submission) : Intake::Deviates;
  if (intake != Intake::Deviates) return intake;
  note_submitted(events_, submission);
  if (waiting_.empty()) first_ = Clock::now();
  bytes_ += input_bytes(submission);
  waiting_.push_back(std::move(submission));
  return intake;
}

void SubmissionQueue::gather(std::chrono::nanoseconds time, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  gather_time_ = time;
  gather_bytes_ = bytes;
}

void SubmissionQueue::use(FrozenSchedule* schedule) {
  const std::lock_guard lock(mutex_);
  schedule_ = schedule;
}

void SubmissionQueue::freeze(FrozenSchedule::Plan plan, std::vector<Submission> earlier) {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<WorkState>> works;
  for (const std::vector<Submission>* const each : {&earlier, &waiting_}) {
    for (const Submission& submission : *each) works.push_back(submission.work);
  }
  schedule_->freeze(std::move(plan));
  put_back_locked(std::move(earlier));
  // A thread that waited before there was a schedule could not notify it.
  for (const std::shared_ptr<WorkState>& work : works) {
    if (work && work->is_awaited()) schedule_->wait_for(*work);
  }
}

void SubmissionQueue::put_back(std::vector<Submission> earlier) {
  const std::lock_guard lock(mutex_);
  put_back_locked(std::move(earlier));
}

void SubmissionQueue::put_back_locked(std::vector<Submission> earlier) {
  std::vector<Submission> later = std::exchange(waiting_, {});
  const Clock::time_point first = first_;
  bytes_ = 0;
  for (Submission& submission : earlier) {
    if (route(submission) == Intake::Deviates) urgent_ = true;
  }
  for (Submission& submission : later) route(submission);
  if (!later.empty()) first_ = first;
}

void SubmissionQueue::flush() noexcept {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty() || urgent_) return;
  urgent_ = true;
  counters_.flushes.add();
}

void SubmissionQueue::wake_locked() {
  counters_.wakes.add();
  if (wake_) wake_();
}

std::optional<SubmissionQueue::Clock::time_point> SubmissionQueue::due() const {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  if (urgent_ || bytes_ >= gather_bytes_) return Clock::time_point();
  return first_ + gather_time_;
}

std::vector<Submission> SubmissionQueue::drain() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  urgent_ = false;
  std::vector<Submission> taken;
  taken.swap(waiting_);
  return taken;
}

void SubmissionQueue::release(std::uint32_t set, const std::string& key) {
  const std::lock_guard lock(mutex_);
  names_.release(set, key);
}

void SubmissionQueue::continue_numbers(std::uint32_t set, std::uint64_t next) {
  const std::lock_guard lock(mutex_);
  names_.continue_numbers(set, next);
}

std::uint64_t SubmissionQueue::joins(std::uint32_t set) const {
  const std::lock_guard lock(mutex_);
  return names_.joins(set);
}

void SubmissionQueue::open_set(std::uint32_t set) {
  const std::lock_guard lock(mutex_);
  names_.open_set(set);
}

std::vector<std::string> SubmissionQueue::close_set(std::uint32_t set) {
  const std::lock_guard lock(mutex_);
  return names_.close_set(set);
}

void SubmissionQueue::forget_set(std::uint32_t set) {
  const std::lock_guard lock(mutex_);
  names_.forget_set(set);
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

}  // namespace ronde

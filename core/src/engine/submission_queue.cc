// SPDX-License-Identifier: Apache-2.0
#include "core/src/engine/submission_queue.h"

#include <algorithm>
#include <iterator>

#include "core/src/kernels/elementwise.h"

namespace ronde {

SubmissionQueue::SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                                 std::function<void()> wake, EventLog& events)
    : events_(events),
      gather_time_(gather_time),
      gather_bytes_(gather_bytes),
      wake_(std::move(wake)) {}

namespace {

std::uint64_t bytes_of(const Submission& submission) {
  std::uint64_t bytes = 0;
  for (const Submission& member : submission.members) bytes += bytes_of(member);
  const RequestMeta& meta = submission.meta;
  return submission.is_group() ? bytes : element_count(meta.shape) * size_of(meta.dtype);
}

}  // namespace

void SubmissionQueue::push(Submission submission) {
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
  names_.reserve(submission);
  counters_.submitted_bytes.add(bytes_of(submission));
  submission.after_wait = waited_.exchange(false, std::memory_order_relaxed);
  for (Submission& member : submission.members) enter(member);
  if (!submission.is_group()) enter(submission);
  const bool quietly = submission.request.caller_waits;
  using Intake = FrozenSchedule::Intake;
  // The schedule belongs to the global set; other sets bypass it.
  const bool asks_schedule = schedule_ != nullptr && submission.meta.set == kGlobalSet.id;
  const Intake intake = asks_schedule ? schedule_->accept(submission) : Intake::Deviates;
  bool has_news = intake == Intake::Committed || intake == Intake::Watched;
  if (intake == Intake::Deviates) {
    note_submitted(events_, submission);
    const bool was_empty = waiting_.empty();
    const bool was_full = bytes_ >= gather_bytes_;
    keep(std::move(submission));
    has_news = was_empty || (!was_full && bytes_ >= gather_bytes_);
  }
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

void SubmissionQueue::keep(Submission submission) {
  if (waiting_.empty()) first_ = Clock::now();
  bytes_ += bytes_of(submission);
  waiting_.push_back(std::move(submission));
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

void SubmissionQueue::freeze(FrozenSchedule::Plan plan, std::vector<Submission> pending) {
  const std::lock_guard lock(mutex_);
  schedule_->freeze(std::move(plan));
  std::vector<Submission> later;
  later.swap(waiting_);
  bytes_ = 0;
  std::ranges::move(later, std::back_inserter(pending));
  std::vector<std::shared_ptr<WorkState>> works;
  const Clock::time_point now = Clock::now();
  for (Submission& submission : pending) {
    submission.submitted = now;  // the schedule's patience begins here
    if (submission.meta.set != kGlobalSet.id) {
      keep(std::move(submission));
      continue;
    }
    if (submission.work) works.push_back(submission.work);
    if (schedule_->accept(submission) == FrozenSchedule::Intake::Deviates) {
      keep(std::move(submission));
      urgent_ = true;  // it has been announced before
    }
  }
  // A thread that waited before there was a schedule could not notify it.
  for (const std::shared_ptr<WorkState>& work : works) {
    if (work->is_awaited()) schedule_->wait_for(*work);
  }
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
  if (urgent_ || bytes_ >= gather_bytes_) return first_;
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

// SPDX-License-Identifier: Apache-2.0
#include "submission_queue.h"

#include <iterator>

#include "elementwise.h"
#include "ronde/error.h"

namespace ronde {

SubmissionQueue::SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                                 std::function<void()> wake)
    : gather_time_(gather_time), gather_bytes_(gather_bytes), wake_(std::move(wake)) {}

void SubmissionQueue::push(Submission submission) {
  const std::uint64_t bytes = element_count(submission.meta.shape) * size_of(submission.meta.dtype);
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
  submission.key = next_key(submission.request);
  if (!in_flight_.insert(submission.key).second) {
    throw UsageError(display_name(submission.meta.kind, submission.key) +
                     " is still in flight: wait for it before using its name again, or give the "
                     "second operation another name");
  }
  if (submission.request.symmetric && !submission.request.contributes) {
    // Not before the name is known to be free, and before peers may reduce this buffer.
    const RequestMeta& meta = submission.meta;
    fill_neutral(submission.request.output, element_count(meta.shape), meta.dtype, meta.op, false);
  }
  counters_.submitted.add();
  counters_.submitted_bytes.add(bytes);
  submission.number = submitted_++;
  submission.after_wait = waited_.exchange(false, std::memory_order_relaxed);
  const bool quietly = submission.request.caller_waits;
  using Intake = FrozenSchedule::Intake;
  const Intake intake = schedule_ != nullptr ? schedule_->accept(submission) : Intake::Deviates;
  bool has_news = intake == Intake::Committed || intake == Intake::Watched;
  if (intake == Intake::Deviates) {
    const bool was_empty = waiting_.empty();
    const bool was_full = bytes_ >= gather_bytes_;
    keep(std::move(submission));
    has_news = was_empty || (!was_full && bytes_ >= gather_bytes_);
  }
  if (has_news && !quietly) wake_locked();
}

std::string SubmissionQueue::next_key(const Request& request) {
  if (is_point_to_point(request.kind)) return message_key(messages_++);
  return request.name.empty() ? unnamed_key(unnamed_++) : request.name;
}

void SubmissionQueue::keep(Submission submission) {
  if (waiting_.empty()) first_ = Clock::now();
  bytes_ += element_count(submission.meta.shape) * size_of(submission.meta.dtype);
  waiting_.push_back(std::move(submission));
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
  std::move(later.begin(), later.end(), std::back_inserter(pending));
  std::vector<std::shared_ptr<WorkState>> works;
  for (Submission& submission : pending) {
    works.push_back(submission.work);
    if (schedule_->accept(submission) == FrozenSchedule::Intake::Deviates) {
      keep(std::move(submission));
      urgent_ = true;  // it has been announced before
    }
  }
  // Who waited before there was a schedule could not tell it so.
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

void SubmissionQueue::release(const std::string& key) {
  const std::lock_guard lock(mutex_);
  in_flight_.erase(key);
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

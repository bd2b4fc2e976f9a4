// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/submission_queue.h"

#include <algorithm>
#include <utility>

#include "core/src/kernels/elementwise.h"

namespace ronde {

using Intake = Agreement::Intake;

SubmissionQueue::SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                                 std::function<void()> wake, EventLog& events)
    : events_(events), wake_(std::move(wake)), negotiated_(gather_time, gather_bytes) {}

void SubmissionQueue::push(Submission submission) {
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
  names_.reserve(submission);
  try {
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
  if (!spec.symmetric() || submission.start.contributes) return;
  // The name is known to be free, and no peer can have reduced this buffer yet.
  fill_neutral(submission.start.output, element_count(spec.shape), spec.dtype, spec.op, false);
}

/// Note [The way of a submission].
Intake SubmissionQueue::route(Submission& submission) {
  if (first_asked_ != nullptr && submission.spec().set == kGlobalSet.id) {
    const Intake intake = first_asked_->put(submission);
    if (intake != Intake::Deviates) return intake;
  }
  note_submitted(events_, submission);
  return negotiated_.put(submission);
}

void SubmissionQueue::ask_first(Agreement* agreement) {
  const std::lock_guard lock(mutex_);
  first_asked_ = agreement;
}

void SubmissionQueue::hand_over(const std::function<std::vector<Submission>()>& change) {
  const std::lock_guard lock(mutex_);
  std::vector<Submission> earlier = change();
  const bool was_due = negotiated_.due() == TimePoint();
  std::vector<Submission> later = negotiated_.take();
  std::vector<std::shared_ptr<WorkState>> awaited;
  for (std::vector<Submission>* const each : {&earlier, &later}) {
    for (Submission& submission : *each) {
      for_each_operation(submission, [&](const Submission& operation) {
        if (operation.work && operation.work->is_awaited()) awaited.push_back(operation.work);
      });
    }
  }
  for (Submission& submission : earlier) route(submission);
  if (!negotiated_.waiting().empty()) negotiated_.hurry();
  for (Submission& submission : later) route(submission);
  if (was_due && !negotiated_.waiting().empty()) negotiated_.hurry();
  // A thread that has waited all along could not tell the agreement that has its operation now.
  for (const std::shared_ptr<WorkState>& work : awaited) expedite_locked(*work, true);
}

bool SubmissionQueue::expedite(const WorkState& work, bool waits) noexcept {
  const std::lock_guard lock(mutex_);
  return expedite_locked(work, waits);
}

bool SubmissionQueue::expedite_locked(const WorkState& work, bool waits) {
  const bool is_flushed = negotiated_.expedite(work, waits);
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
  negotiated_.gather(time, bytes);
}

std::optional<SubmissionQueue::TimePoint> SubmissionQueue::due() const {
  const std::lock_guard lock(mutex_);
  const std::optional<TimePoint> due = negotiated_.due();
  const auto first = first_asked_ != nullptr ? first_asked_->due() : std::nullopt;
  return due && first ? std::min(*due, *first) : due ? due : first;
}

std::vector<Submission> SubmissionQueue::take(TimePoint now) {
  const std::lock_guard lock(mutex_);
  const std::optional<TimePoint> due = negotiated_.due();
  return due && *due <= now ? negotiated_.take() : std::vector<Submission>();
}

void SubmissionQueue::release(Submission& submission) {
  const std::lock_guard lock(mutex_);
  names_.release(submission);
  memory_.leave(submission);
}

NameUse* SubmissionQueue::prepare(const SpecPtr& spec) {
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
  return names_.prepare(spec);
}

void SubmissionQueue::unprepare(const SpecPtr& spec) {
  const std::lock_guard lock(mutex_);
  names_.unprepare(spec);
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

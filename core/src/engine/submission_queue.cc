// SPDX-License-Identifier: Apache-2.0
#include "core/src/engine/submission_queue.h"

#include <algorithm>
#include <iterator>

#include "core/src/kernels/elementwise.h"
#include "core/src/submit/engine_scope.h"
#include "ronde/error.h"

namespace ronde {

SubmissionQueue::SubmissionQueue(std::chrono::nanoseconds gather_time, std::uint64_t gather_bytes,
                                 std::function<void()> wake)
    : gather_time_(gather_time), gather_bytes_(gather_bytes), wake_(std::move(wake)) {
  sets_[kGlobalSet.id] = {};
}

namespace {

std::uint64_t bytes_of(const Submission& submission) {
  std::uint64_t bytes = 0;
  for (const Submission& member : submission.members) bytes += bytes_of(member);
  const RequestMeta& meta = submission.meta;
  return submission.is_group() ? bytes : element_count(meta.shape) * size_of(meta.dtype);
}

/// Sorts the members in the same order on every rank: by name, and those without one by their
/// calls.
void sort_members(Submission& group) {
  const auto comes_first = [](const Submission& a, const Submission& b) {
    if (is_unnamed(a.key) || is_unnamed(b.key)) return !is_unnamed(a.key) && is_unnamed(b.key);
    return a.key < b.key;
  };
  std::stable_sort(group.members.begin(), group.members.end(), comes_first);
  if (!is_unnamed(group.key)) group.request.name = group.key;
  for (Submission& member : group.members) {
    group.meta.members.push_back(member.meta);
    group.meta.members.back().name = member.request.name;
  }
}

}  // namespace

void SubmissionQueue::push(Submission submission) {
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
  reserve(submission);
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
    const bool was_empty = waiting_.empty();
    const bool was_full = bytes_ >= gather_bytes_;
    keep(std::move(submission));
    has_news = was_empty || (!was_full && bytes_ >= gather_bytes_);
  }
  if (has_news && !quietly) wake_locked();
}

void SubmissionQueue::enter(Submission& submission) {
  counters_.submitted.add();
  submission.number = submitted_++;
  if (!submission.request.symmetric || submission.request.contributes) return;
  // The name is known to be free, and no peer can have reduced this buffer yet.
  const RequestMeta& meta = submission.meta;
  fill_neutral(submission.request.output, element_count(meta.shape), meta.dtype, meta.op, false);
}

namespace {

std::string text_of(const Submission& submission) {
  const bool is_group = submission.is_group();
  const Submission& shown = is_group ? submission.members.front() : submission;
  return (is_group ? "the group with " : "") + display_name(shown.meta, shown.request.name);
}

thread_local bool this_thread_ends = false;  // needs no destructor, so that it can be asked there

struct LivingThread {
  const std::shared_ptr<const char> token = std::make_shared<const char>();
  ~LivingThread() { this_thread_ends = true; }
};

/// The calling thread is `owner`; it becomes the owner if there is none any more.
bool is_this_thread(std::weak_ptr<const void>& owner) {
  if (this_thread_ends) return owner.expired();
  thread_local const LivingThread thread;
  const bool is_owner = !owner.owner_before(thread.token) && !thread.token.owner_before(owner);
  if (is_owner || !owner.expired()) return is_owner;
  owner = thread.token;
  return true;
}

}  // namespace

/// Note [Who calls without a name].
void SubmissionQueue::expect_order(SetState& state, const Submission& submission) {
  const bool in_callback = EngineScope::is_inside();
  if (!in_callback && is_this_thread(state.caller_without_names)) return;
  throw UsageError(
      text_of(submission) + " is matched by the order of calls, " +
      (in_callback ? "in which callbacks have no certain place. Give those of callbacks a name"
                   : "which is that of another thread of this rank until it ends. Give those of "
                     "other threads a name"));
}

/// Takes the key of the operation, or those of all members of a group, and their names.
void SubmissionQueue::reserve(Submission& submission) {
  SetState* const state = state_of(submission.meta.set);
  if (state == nullptr || !state->is_open) {
    throw UsageError(text_of(submission) + ": the set is being removed");
  }
  if (state->has_joined) {
    throw UsageError(text_of(submission) +
                     ": this rank has joined, and can submit nothing more until all ranks have: "
                     "wait for the join first");
  }
  state->has_joined = submission.meta.kind == Collective::Join;
  if (state->has_joined) ++state->joins;
  submission.unnamed_before = state->unnamed;
  if (!submission.is_group()) {
    submission.key = next_key(*state, submission);
    return take_name(*state, submission);
  }
  take_keys(*state, submission);
  sort_members(submission);
}

/// A group without any name takes one number, however many operations are in it: where groups
/// differ between ranks, the numbers of what follows do not. Members without a name are told apart
/// on this rank alone.
void SubmissionQueue::take_keys(SetState& state, Submission& group) {
  std::string base;
  for (const Submission& member : group.members) {
    const std::string& name = member.request.name;
    if (!name.empty() && (base.empty() || name < base)) base = name;
  }
  if (base.empty()) expect_order(state, group);
  group.key = base.empty() ? unnamed_key(state.unnamed) : base;
  std::size_t taken = 0;
  std::size_t unnamed = 0;
  try {
    for (Submission& member : group.members) {
      const std::string& name = member.request.name;
      member.key = name.empty() ? member_key(group.key, unnamed++) : name;
      take_name(state, member);
      ++taken;
    }
  } catch (...) {
    for (std::size_t i = 0; i < taken; ++i) state.in_flight.erase(group.members[i].key);
    throw;
  }
  if (is_unnamed(group.key)) ++state.unnamed;
}

SubmissionQueue::SetState* SubmissionQueue::state_of(std::uint32_t set) {
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : &found->second;
}

void SubmissionQueue::take_name(SetState& state, const Submission& submission) {
  if (state.in_flight.emplace(submission.key, submission.meta.kind).second) return;
  throw UsageError(display_name(submission.meta, submission.key) +
                       " is still in flight: wait for it before using its name again, or give the "
                       "second operation another name",
                   UsageError::Kind::DuplicateName);
}

std::string SubmissionQueue::next_key(SetState& state, const Submission& submission) {
  const Request& request = submission.request;
  if (request.kind == Collective::Join) return join_key();
  if (is_point_to_point(request.kind)) return message_key(state.messages++);
  if (!request.name.empty()) return request.name;
  expect_order(state, submission);
  return unnamed_key(state.unnamed++);
}

void SubmissionQueue::keep(Submission submission) {
  if (waiting_.empty()) first_ = Clock::now();
  bytes_ += bytes_of(submission);
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
  std::ranges::move(later, std::back_inserter(pending));
  std::vector<std::shared_ptr<WorkState>> works;
  for (Submission& submission : pending) {
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
  SetState* const state = state_of(set);
  if (state == nullptr) return;
  state->in_flight.erase(key);
  if (is_join(key)) state->has_joined = false;
}

void SubmissionQueue::continue_numbers(std::uint32_t set, std::uint64_t next) {
  const std::lock_guard lock(mutex_);
  sets_.at(set).unnamed = next;
}

std::uint64_t SubmissionQueue::joins(std::uint32_t set) const {
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(set);
  return found == sets_.end() ? 0 : found->second.joins;
}

void SubmissionQueue::open_set(std::uint32_t set) {
  const std::lock_guard lock(mutex_);
  sets_[set].is_open = true;
}

std::vector<std::string> SubmissionQueue::close_set(std::uint32_t set) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  SetState* const state = state_of(set);
  if (state == nullptr || !state->is_open) {
    throw UsageError("process set " + std::to_string(set) +
                     " is being removed by another thread of this rank");
  }
  state->is_open = false;
  for (const auto& [key, kind] : state->in_flight) names.push_back(display_name(kind, key));
  std::ranges::sort(names);
  return names;
}

void SubmissionQueue::forget_set(std::uint32_t set) {
  const std::lock_guard lock(mutex_);
  sets_.erase(set);
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

// SPDX-License-Identifier: Apache-2.0
// Submissions fill the places of the plan; a full bucket raises its arrival word, and the loop
// takes buckets that all ranks have raised, in the order of the plan. Any deviation closes the
// words (a thaw), and what is not committed by then goes back to negotiation: Note [Frozen
// schedule].
#include "core/src/agree/frozen_schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/src/base/monotonic_clock.h"

namespace ronde {
namespace {

/// A schedule thaws after the time to the first stall warning divided by this, as only rank 0's
/// negotiation knows which ranks are missing.
constexpr double kThawsBeforeWarning = 2.0;

}  // namespace

FrozenSchedule::FrozenSchedule(Board& board, int rank, int ranks, Duration longest_wait,
                               EventLog& events, std::mutex& mutex)
    : board_(board),
      longest_wait_(longest_wait),
      events_(events),
      words_(board, rank, ranks),
      mutex_(mutex) {}

FrozenSchedule::Plan FrozenSchedule::plan_of(const ScheduleMessage& message,
                                             const Announcer& announcer) {
  Plan plan;
  plan.patience = std::chrono::milliseconds(message.patience_ms);
  for (const std::vector<ScheduledSlot>& slots : message.buckets) {
    std::vector<Item>& bucket = plan.buckets.emplace_back();
    for (const ScheduledSlot& item : slots) {
      const CachedResponse& response = announcer.response(item.slot);
      bucket.push_back(
          {response.own, response.rows, announcer.contributed(item.slot), item.contributed});
    }
  }
  return plan;
}

const char* FrozenSchedule::text_of(Thaw reason) {
  constexpr std::array<const char*, 5> kTexts = {
      "an operation was submitted that is not in it",
      "a wait for what comes after an operation that was not submitted",
      "a bucket stayed incomplete for too long", "shutdown() was called",
      "rank 0 tries other settings"};
  return kTexts.at(static_cast<std::size_t>(reason));
}

void FrozenSchedule::freeze(Plan plan, TimePoint now) {
  reset();
  ++generation_;
  frozen_.store(true, std::memory_order_relaxed);
  patience_ = plan.patience;
  limit_ = longest_wait_.count() > 0 ? std::min(patience_, longest_wait_) : patience_;
  frozen_since_ = now;
  inspection_ = now + limit_;
  for (std::vector<Item>& items : plan.buckets) {
    Bucket bucket;
    bucket.missing = items.size();
    for (Item& item : items) {
      Places& places = item.spec->name.empty() ? unnamed_ : named_[item.spec];
      places.all.push_back({buckets_.size(), bucket.entries.size()});
      bucket.entries.push_back({std::move(item)});
    }
    buckets_.push_back(std::move(bucket));
  }
  expedited_ = buckets_.size();  // a thread may wait for what was submitted before
  counters_.freezes.add();
}

void FrozenSchedule::reset() {
  frozen_.store(false, std::memory_order_relaxed);
  thawing_ = false;
  cause_.clear();
  expedited_ = 0;
  buckets_.clear();
  named_.clear();
  unnamed_ = {};
  next_ = 0;
}

Agreement::Intake FrozenSchedule::put(Submission& submission) {
  if (!frozen_) return Intake::Deviates;
  // Before the word is raised, so that a peer that raises it last does not wake this rank's engine:
  // its thread would take the core and the loop from the caller that is about to drive it.
  if (submission.start.caller_waits) board_.set_asleep(Board::Sleep::None);
  Places* const places = thawing_ ? nullptr : find(submission);
  if (places == nullptr) {
    if (!thawing_) thaw_locked(Thaw::Submission, display_name(submission.key));
    return Intake::Deviates;
  }
  const std::size_t bucket = places->all[places->next].bucket;
  const bool has_deadline = submission.deadline.has_value();
  if (has_deadline) inspection_ = std::min(inspection_, *submission.deadline);
  if (!fill(*places, submission)) return has_deadline ? Intake::Due : Intake::Taken;
  const bool notifies =
      request_wake(buckets_[bucket].lazy ? Board::Whom::Waiting : Board::Whom::All);
  return notifies || thawing_ || next_is_due() ? Intake::Due : Intake::Taken;
}

/// Has the loop of this rank wake sleeping peers: a system call for each of them would be too slow
/// for the thread that submits, and for the locks that it holds. Returns false if none sleeps.
bool FrozenSchedule::request_wake(Board::Whom whom) {
  if (!board_.has_sleepers(whom)) return false;
  if (wake_due_ != Board::Whom::All) wake_due_ = whom;
  return true;
}

FrozenSchedule::Places* FrozenSchedule::find(const Submission& submission) {
  Places* places = &unnamed_;
  const bool is_named = !submission.spec().name.empty();
  if (is_named) {
    const auto found = named_.find(submission.key.spec);
    places = found != named_.end() ? &found->second : nullptr;
  }
  if (places == nullptr || places->all.empty()) return nullptr;
  const Place place = places->all[places->next];
  const Bucket& bucket = buckets_[place.bucket];
  const Entry& entry = bucket.entries[place.entry];
  // The previous submission for this place may still be waiting to run.
  const bool fits = !entry.submission && !bucket.raised &&
                    entry.contributes == submission.start.contributes &&
                    (is_named || is_same(entry.spec, submission.key.spec));
  return fits ? places : nullptr;
}

/// Fills the next of these places. True: all ranks have raised the bucket, or will not.
bool FrozenSchedule::fill(Places& places, Submission& submission) {
  const Place place = places.all[places.next];
  if (++places.next == places.all.size()) places.next = 0;
  Bucket& bucket = buckets_[place.bucket];
  // Patience with what was submitted before begins with the schedule.
  const TimePoint now = std::max(submission.submitted, frozen_since_);
  if (bucket.missing == bucket.entries.size()) bucket.since = now;
  bucket.lazy = bucket.lazy && submission.is_lazy && submission.spec().symmetric();
  bucket.digest += submission.start.digest;
  const bool completes = bucket.missing == 1;
  for_each_operation(submission, [&](Submission& operation) {
    operation.work->set_bucket(place.bucket);
    if (completes && operation.is_recorded) record_announced(events_, operation, now);
  });
  record_submitted(events_, submission, completes ? ThenAlso::Announced : ThenAlso::Nothing);
  counters_.tensors.add(std::max<std::size_t>(1, submission.members.size()));
  bucket.entries[place.entry].submission = std::move(submission);
  if (--bucket.missing > 0) return false;
  bucket.raised = true;
  bucket.since = now;
  const ArrivalWords::Raised raised =
      words_.raise(generation_, place.bucket, bucket.step, bucket.digest);
  // A peer has thawed: this submission is among the remains.
  if (raised == ArrivalWords::Raised::Closed) thaw_locked(Thaw::Submission);
  return raised != ArrivalWords::Raised::Waiting;
}

bool FrozenSchedule::expedite(const WorkState& work, bool waits) {
  const std::optional<std::size_t> target = work.bucket();
  if (!frozen_ || !target || *target >= buckets_.size()) return false;
  const std::size_t ahead = (*target + buckets_.size() - next_) % buckets_.size() + 1;
  const bool was_put_off = ahead > expedited_;
  if (was_put_off) expedited_ = ahead;
  if (!waits || thawing_) return was_put_off;
  for (std::size_t bucket = next_; buckets_[bucket].raised;
       bucket = (bucket + 1) % buckets_.size()) {
    if (bucket == *target) return was_put_off;
  }
  thaw_locked(Thaw::Wait, work.name());
  return true;
}

bool FrozenSchedule::is_expedited() const {
  if (!is_frozen()) return false;
  const std::lock_guard lock(mutex_);
  return expedited_ > 0;
}

void FrozenSchedule::thaw(Thaw reason) {
  const std::lock_guard lock(mutex_);
  if (frozen_) thaw_locked(reason, "this rank");
}

void FrozenSchedule::thaw_locked(Thaw reason, std::string cause) {
  if (thawing_) return;
  thawing_ = true;
  cause_ = std::move(cause);
  // This rank closes the words even if a peer has thawed: the peer may not have closed all yet.
  words_.close(generation_, buckets_.size(), static_cast<std::uint8_t>(reason));
  if (reason == Thaw::Wait) counters_.thaws_by_wait.add();
  if (reason == Thaw::Submission) counters_.thaws_by_submission.add();
  if (reason == Thaw::TimeLimit) counters_.thaws_by_time_limit.add();
  if (reason == Thaw::Tuning) counters_.thaws_by_tuning.add();
  request_wake(Board::Whom::All);
}

std::optional<TimePoint> FrozenSchedule::due() const {
  if (!frozen_) return std::nullopt;
  return has_news() ? TimePoint() : inspection_;
}

void FrozenSchedule::inspect(TimePoint now) {
  if (!is_frozen()) return;
  const std::lock_guard lock(mutex_);
  if (now < inspection_) return;
  inspection_ = first_limit(now);
  if (inspection_ <= now && !has_news()) thaw_locked(Thaw::TimeLimit, "this rank");
}

/// Returns the first time at which a submission, present or made after `now`, has waited too long.
TimePoint FrozenSchedule::first_limit(TimePoint now) const {
  TimePoint first = now + limit_;
  const auto earlier = [&first](TimePoint time) { first = std::min(first, time); };
  bool owes = false;  // this rank has yet to fill an earlier bucket, or this one
  bool can_run = true;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::size_t index = (next_ + i) % buckets_.size();
    const Bucket& bucket = buckets_[index];
    owes = owes || !bucket.raised;
    can_run = can_run && committed(index);
    if (can_run || bucket.missing == bucket.entries.size()) continue;
    if (owes) earlier(bucket.since + patience_);
    if (bucket.raised && longest_wait_.count() > 0) earlier(bucket.since + longest_wait_);
    for (const Entry& entry : bucket.entries) {
      if (entry.submission && entry.submission->deadline) earlier(*entry.submission->deadline);
    }
  }
  return first;
}

bool FrozenSchedule::committed(std::size_t bucket) const {
  const Bucket& candidate = buckets_[bucket];
  return candidate.raised && words_.committed(generation_, bucket) >= candidate.step;
}

/// Returns whether the next bucket is committed and not put off.
bool FrozenSchedule::next_is_due() const {
  if (!committed(next_)) return false;
  if (expedited_ > 0) return true;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::size_t bucket = (next_ + i) % buckets_.size();
    if (!committed(bucket)) return false;
    if (!buckets_[bucket].lazy) return true;
  }
  return false;
}

/// After a thaw, committed buckets run in the order of the plan: those left of this round, then
/// those of the next one.
std::optional<std::size_t> FrozenSchedule::next_to_run() const {
  if (next_is_due()) return next_;
  if (!words_.closed(generation_)) return std::nullopt;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::size_t bucket = (next_ + i) % buckets_.size();
    if (committed(bucket)) return bucket;
  }
  return std::nullopt;
}

/// Returns whether take() has something to return or to do.
bool FrozenSchedule::has_news() const {
  return wake_due_ || words_.closed(generation_) || next_is_due();
}

FrozenSchedule::Next FrozenSchedule::take() {
  Next next;
  if (!is_frozen()) return next;
  std::unique_lock lock(mutex_);
  const std::optional<Board::Whom> whom = std::exchange(wake_due_, std::nullopt);
  if (const std::optional<std::size_t> bucket = next_to_run()) {
    next.is_group = buckets_[*bucket].entries.front().spec->is_group();
    next.bucket = empty(buckets_[*bucket]);
    if (*bucket == next_) {
      next_ = (next_ + 1) % buckets_.size();
      if (expedited_ > 0) --expedited_;
    }
    next.is_last = !next_to_run() && !words_.closed(generation_);
  } else if (const auto reason = words_.closed(generation_); reason && !next_to_run()) {
    counters_.thaws.add();
    next.remains = {.submissions = {},
                    .reason = static_cast<Thaw>(*reason),
                    .rounds = buckets_.front().step - 1,
                    .cause = std::move(cause_)};
    next.remains->submissions = take_submissions();
  }
  lock.unlock();
  if (whom) board_.notify(*whom);
  return next;
}

std::vector<Submission> FrozenSchedule::empty(Bucket& bucket) {
  std::vector<Submission> agreed;
  const auto index = static_cast<std::size_t>(&bucket - buckets_.data());
  const int last_rank = words_.last_rank(index);
  const bool differ = bucket.digest != 0 && words_.digests_differ(generation_, index, bucket.step);
  for (Entry& entry : bucket.entries) {
    add_agreed(agreed, std::move(*entry.submission), entry.rows, entry.contributed,
               differ ? kDigestsDiffer : 0);
    entry.submission.reset();
  }
  for (Submission& operation : agreed) {
    operation.work->set_bucket(std::nullopt);
    operation.last_rank = last_rank;
  }
  bucket.missing = bucket.entries.size();
  bucket.raised = false;
  bucket.lazy = true;
  bucket.digest = 0;
  ++bucket.step;
  counters_.buckets.add();
  return agreed;
}

std::vector<Submission> FrozenSchedule::drain() {
  const std::lock_guard lock(mutex_);
  return take_submissions();
}

std::vector<Submission> FrozenSchedule::take_submissions() {
  std::vector<Submission> taken;
  for (Bucket& bucket : buckets_) {
    for (Entry& entry : bucket.entries) {
      if (entry.submission) taken.push_back(std::move(*entry.submission));
    }
  }
  reset();
  return taken;
}

std::vector<std::string> FrozenSchedule::pending_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets_) {
    for (const Entry& entry : bucket.entries) {
      if (!entry.submission) continue;
      names.push_back(display_name(entry.submission->key));
    }
  }
  return names;
}

std::unique_ptr<FrozenSchedule> make_schedule(const Config& config, int rank, int ranks,
                                              Board& board, SubmissionQueue& queue,
                                              const Logger& log) {
  if (config.verify) return nullptr;  // rank 0 compares results in the order of decisions
  // Made at the start or never, also for an autotuner that may turn freezing on later.
  const bool may_freeze = config.freeze_after_steps > 0 || config.autotune || !config.tuned.empty();
  if (!may_freeze) return nullptr;
  if (ranks > ArrivalWords::kMostRanks) {
    if (rank == 0) {
      log.debug("no schedule is frozen: it serves at most " +
                std::to_string(ArrivalWords::kMostRanks) + " ranks, and there are " +
                std::to_string(ranks));
    }
    return nullptr;
  }
  const double limit_s = config.stall_warn_s > 0 ? config.stall_warn_s : config.stall_abort_s;
  auto schedule = std::make_unique<FrozenSchedule>(
      board, rank, ranks, from_s(limit_s / kThawsBeforeWarning), queue.events(), queue.mutex());
  queue.ask_first(schedule.get());
  return schedule;
}

}  // namespace ronde

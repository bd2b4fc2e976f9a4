// SPDX-License-Identifier: Apache-2.0
// Submissions fill the places of the plan; a full bucket raises its arrival word, and the loop
// takes buckets that all ranks have raised, in the order of the plan. Any deviation closes the
// words (a thaw), and what is not committed by then goes back to negotiation: Note [Frozen
// schedule].
#include "core/src/schedule/frozen_schedule.h"

#include <algorithm>
#include <utility>

namespace ronde {

FrozenSchedule::FrozenSchedule(Board& board, int rank, int ranks, Clock::duration longest_wait,
                               EventLog& events)
    : board_(board),
      rank_(rank),
      longest_wait_(longest_wait),
      events_(events),
      words_(board, rank, ranks) {}

void FrozenSchedule::freeze(Plan plan) {
  const std::lock_guard lock(mutex_);
  reset();
  ++generation_;
  frozen_ = true;
  patience_ = plan.patience;
  frozen_since_ = Clock::now();
  for (std::vector<Item>& items : plan.buckets) {
    Bucket bucket;
    bucket.missing = items.size();
    for (Item& item : items) {
      const Place place{buckets_.size(), bucket.entries.size()};
      if (item.response.name.empty()) {
        unnamed_.push_back(place);
      } else {
        places_[item.response.name] = place;
      }
      RequestMeta meta = item.response.request_of(rank_);
      bucket.entries.push_back({std::move(item), std::move(meta), std::nullopt});
    }
    buckets_.push_back(std::move(bucket));
  }
  expedited_ = buckets_.size();  // somebody may wait for what was submitted before
  counters_.freezes.add();
}

void FrozenSchedule::reset() {
  frozen_ = thawing_ = false;
  cause_.clear();
  expedited_ = 0;
  buckets_.clear();
  places_.clear();
  unnamed_.clear();
  next_ = next_unnamed_ = 0;
}

FrozenSchedule::Intake FrozenSchedule::accept(Submission& submission) {
  const std::lock_guard lock(mutex_);
  if (!frozen_) return Intake::Deviates;
  // Before the word is raised: a peer that raises it last need not wake this rank's engine, which
  // would take the core and the loop from the caller that comes to drive it.
  if (submission.request.caller_waits) board_.set_asleep(Board::Sleep::None);
  const Place* const place = thawing_ ? nullptr : find(submission);
  if (place == nullptr) {
    if (!thawing_) thaw_locked(Thaw::Submission, display_name(submission.meta, submission.key));
    return Intake::Deviates;
  }
  const Intake intake = put(*place, submission);
  if (intake != Intake::Committed) return intake;
  const bool notifies =
      note_change(buckets_[place->bucket].lazy ? Board::Whom::Waiting : Board::Whom::All);
  return notifies || thawing_ || next_is_due() ? Intake::Committed : Intake::Taken;
}

/// Leaves waking to the loop of this rank: a system call for each sleeping peer is too much for the
/// thread that submits, and for the locks that it holds. False if nobody has to be woken.
bool FrozenSchedule::note_change(Board::Whom whom) {
  if (!board_.has_sleepers(whom)) return false;
  if (notify_due_ != Board::Whom::All) notify_due_ = whom;
  return true;
}

const FrozenSchedule::Place* FrozenSchedule::find(const Submission& submission) const {
  const Place* place = nullptr;
  if (!submission.request.name.empty()) {
    const auto found = places_.find(submission.request.name);
    if (found != places_.end()) place = &found->second;
  } else if (!unnamed_.empty()) {
    place = &unnamed_[next_unnamed_];
  }
  if (place == nullptr) return nullptr;
  const Entry& entry = buckets_[place->bucket].entries[place->entry];
  // The last one of an operation without a name may still wait for its turn.
  const bool fits = !entry.submission && !buckets_[place->bucket].raised &&
                    entry.item.contributes == submission.request.contributes &&
                    entry.meta == submission.meta;
  return fits ? place : nullptr;
}

FrozenSchedule::Intake FrozenSchedule::put(Place place, Submission& submission) {
  Bucket& bucket = buckets_[place.bucket];
  if (submission.request.name.empty()) next_unnamed_ = (next_unnamed_ + 1) % unnamed_.size();
  // Patience with what was submitted before begins with the schedule.
  const Clock::time_point now = std::max(submission.submitted, frozen_since_);
  if (bucket.missing == bucket.entries.size()) bucket.since = now;
  const Intake taken = submission.deadline ? Intake::Watched : Intake::Taken;
  bucket.lazy = bucket.lazy && submission.request.lazy && submission.request.symmetric;
  submission.work->set_bucket(place.bucket);
  const bool completes = bucket.missing == 1;
  if (completes && submission.is_noted) {
    events_.write({.time_ns = EventLog::ns_of(now),
                   .kind = EventKind::Announced,
                   .collective = submission.meta.kind,
                   .set = submission.meta.set,
                   .operation = submission.number});
  }
  note_submitted(events_, submission, completes ? ThenAlso::Announced : ThenAlso::Nothing);
  bucket.entries[place.entry].submission = std::move(submission);
  counters_.tensors.add();
  if (--bucket.missing > 0) return taken;
  bucket.raised = true;
  bucket.since = now;
  switch (words_.raise(generation_, place.bucket, bucket.step)) {
    case ArrivalWords::Raised::Committed:
      return Intake::Committed;
    case ArrivalWords::Raised::Closed:
      // A peer has thawed; this submission goes the way of all that are left.
      thaw_locked(Thaw::Submission);
      return Intake::Committed;
    case ArrivalWords::Raised::Waiting:
      break;
  }
  return taken;
}

bool FrozenSchedule::expedite(const WorkState& work) {
  const std::lock_guard lock(mutex_);
  return expedite_locked(work);
}

bool FrozenSchedule::expedite_locked(const WorkState& work) {
  const std::optional<std::size_t> target = work.bucket();
  if (!frozen_ || !target || *target >= buckets_.size()) return false;
  const std::size_t ahead = (*target + buckets_.size() - next_) % buckets_.size() + 1;
  if (ahead <= expedited_) return false;
  expedited_ = ahead;
  return true;
}

bool FrozenSchedule::is_expedited() const {
  const std::lock_guard lock(mutex_);
  return expedited_ > 0;
}

void FrozenSchedule::wait_for(const WorkState& work) {
  const std::lock_guard lock(mutex_);
  expedite_locked(work);
  const std::optional<std::size_t> target = work.bucket();
  if (!frozen_ || thawing_ || !target || *target >= buckets_.size()) return;
  for (std::size_t bucket = next_;; bucket = (bucket + 1) % buckets_.size()) {
    if (!buckets_[bucket].raised) return thaw_locked(Thaw::Wait, work.name());
    if (bucket == *target) return;
  }
}

void FrozenSchedule::thaw(Thaw reason) {
  const std::lock_guard lock(mutex_);
  if (frozen_ && !thawing_) thaw_locked(reason, "this rank");
}

void FrozenSchedule::thaw_locked(Thaw reason, std::string cause) {
  if (thawing_) return;
  thawing_ = true;
  cause_ = std::move(cause);
  // A peer that has thawed may be in the middle of closing them.
  words_.close(generation_, buckets_.size(), static_cast<std::uint8_t>(reason));
  if (reason == Thaw::Wait) counters_.thaws_by_wait.add();
  if (reason == Thaw::Submission) counters_.thaws_by_submission.add();
  if (reason == Thaw::TimeLimit) counters_.thaws_by_time_limit.add();
  if (reason == Thaw::Tuning) counters_.thaws_by_tuning.add();
  note_change(Board::Whom::All);
}

std::optional<FrozenSchedule::Clock::time_point> FrozenSchedule::due() const {
  const std::lock_guard lock(mutex_);
  if (!frozen_ || thawing_) return std::nullopt;
  const Clock::duration limit =
      longest_wait_.count() > 0 ? std::min(patience_, longest_wait_) : patience_;
  Clock::time_point due = Clock::now() + limit / 2;
  const auto earlier = [&due](Clock::time_point time) { due = std::min(due, time); };
  bool owes = false;  // this rank, something that comes before the bucket
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
  return due;
}

void FrozenSchedule::inspect(Clock::time_point now) {
  const auto limit = due();
  if (limit && *limit <= now && !has_news()) thaw(Thaw::TimeLimit);
}

bool FrozenSchedule::committed(std::size_t bucket) const {
  const Bucket& candidate = buckets_[bucket];
  return candidate.raised && words_.committed(generation_, bucket) >= candidate.step;
}

/// The next bucket can run, and is not put off.
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

/// After a thaw all that is committed runs, in the order in which it would have: the rest of this
/// round, then the next one.
std::optional<std::size_t> FrozenSchedule::next_to_run() const {
  if (!frozen_) return std::nullopt;
  if (next_is_due()) return next_;
  if (!words_.closed(generation_)) return std::nullopt;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::size_t bucket = (next_ + i) % buckets_.size();
    if (committed(bucket)) return bucket;
  }
  return std::nullopt;
}

bool FrozenSchedule::has_news() const {
  const std::lock_guard lock(mutex_);
  return notify_due_ || (frozen_ && (words_.closed(generation_) || next_is_due()));
}

std::optional<std::vector<Submission>> FrozenSchedule::take() {
  std::unique_lock lock(mutex_);
  const std::optional<Board::Whom> whom = std::exchange(notify_due_, std::nullopt);
  std::optional<std::vector<Submission>> agreed;
  if (const std::optional<std::size_t> bucket = next_to_run()) {
    agreed = empty(buckets_[*bucket]);
    if (*bucket == next_) {
      next_ = (next_ + 1) % buckets_.size();
      if (expedited_ > 0) --expedited_;
    }
  }
  lock.unlock();
  if (whom) board_.notify(*whom);
  return agreed;
}

std::vector<Submission> FrozenSchedule::empty(Bucket& bucket) {
  std::vector<Submission> agreed;
  agreed.reserve(bucket.entries.size());
  const int last_rank = words_.last_rank(static_cast<std::size_t>(&bucket - buckets_.data()));
  for (Entry& entry : bucket.entries) {
    entry.submission->work->set_bucket(std::nullopt);
    entry.submission->rows = entry.item.response.rows;
    entry.submission->contributed = entry.item.contributed;
    entry.submission->last_rank = last_rank;
    agreed.push_back(std::move(*entry.submission));
    entry.submission.reset();
  }
  bucket.missing = bucket.entries.size();
  bucket.raised = false;
  bucket.lazy = true;
  ++bucket.step;
  counters_.buckets.add();
  return agreed;
}

std::optional<FrozenSchedule::Remains> FrozenSchedule::finish_thaw() {
  const std::lock_guard lock(mutex_);
  if (!frozen_) return std::nullopt;
  const std::optional<std::uint8_t> reason = words_.closed(generation_);
  if (!reason || next_to_run()) return std::nullopt;
  counters_.thaws.add();
  Remains remains;
  remains.reason = static_cast<Thaw>(*reason);
  remains.rounds = buckets_.front().step - 1;
  remains.cause = std::move(cause_);
  remains.submissions = take_submissions();
  return remains;
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

bool FrozenSchedule::is_frozen() const {
  const std::lock_guard lock(mutex_);
  return frozen_;
}

std::vector<std::string> FrozenSchedule::pending_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets_) {
    for (const Entry& entry : bucket.entries) {
      if (!entry.submission) continue;
      names.push_back(display_name(entry.submission->meta.kind, entry.submission->key));
    }
  }
  return names;
}

}  // namespace ronde

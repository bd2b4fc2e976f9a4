// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/src/agree/announcer.h"
#include "core/src/agree/arrival_words.h"
#include "core/src/agree/messages.h"
#include "core/src/agree/response_cache.h"
#include "core/src/base/counter.h"
#include "core/src/events/event_log.h"
#include "core/src/op/agreement.h"
#include "core/src/op/submission.h"
#include "core/src/op/submission_queue.h"
#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/plugin/board.h"

namespace ronde {

/// The steady state of one rank: all ranks keep to a plan while their programs repeat the same
/// operations, so that no messages are needed.
///
/// Note [Frozen schedule]
/// Rank 0 has seen the same operations several times and has sent all ranks their order and their
/// buckets. From then on each submission is ticked off here, on the thread that submits it. The
/// last one of a bucket raises the bucket's arrival word (Note [Arrival words]); the last rank to
/// raise it commits the bucket, and its loop wakes the others. Every rank runs committed buckets in
/// the order of the plan, round after round. A name may come several times in a round: its next
/// submission fills the next of its places. A group has a bucket of its own, whose operations
/// the executor fuses when it runs them.
///
/// Whatever does not fit thaws the schedule: another operation or another shape, shutdown, a wait
/// for something that can only run after what this rank has not submitted, a time limit. The rank
/// closes the words; every rank then runs what was committed by that time, in the order of the
/// plan, and returns the rest to negotiation. An operation is negotiated only once all ranks that
/// take part have submitted it (of a point-to-point message two), and a rank submits nothing before
/// it has seen the thaw, so the order stays the same everywhere.
///
/// Note [Lazy buckets]
/// A bucket of lazy operations may be committed long before this rank looks at it: waiting peers do
/// the work for it, as the buffers are symmetric. This rank runs it only once somebody waits, asks,
/// or has submitted something later that is not lazy; nobody is woken before, so that the cores go
/// on computing.
///
/// Thread-safety: every member may be called from any thread; those of Agreement, and freeze(),
/// with the mutex held.
class FrozenSchedule final : public Agreement {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  /// An operation of the plan, as this rank submits it.
  struct Item {
    CachedResponse response;
    bool contributes = true;  ///< this rank does
    bool contributed = true;  ///< any rank does
  };
  struct Plan {
    std::vector<std::vector<Item>> buckets;
    /// How long a bucket may stay incomplete on this rank, or stand behind one that is.
    Duration patience{};
  };

  /// The plan of the slots in `message`, whose operations `announcer` knows.
  static Plan plan_of(const ScheduleMessage& message, const Announcer& announcer);

  enum class Thaw : std::uint8_t { Submission, Wait, TimeLimit, Shutdown, Tuning };
  static const char* text_of(Thaw reason);

  struct Counters {
    Counter freezes, thaws, thaws_by_submission, thaws_by_wait, thaws_by_time_limit,
        thaws_by_tuning, tensors, buckets;
  };

  /// `longest_wait`: how long peers may take to raise what this rank has raised; zero for ever.
  /// `mutex`: of the SubmissionQueue. The references outlive this.
  FrozenSchedule(Board& board, int rank, int ranks, Duration longest_wait, EventLog& events,
                 std::mutex& mutex);

  std::size_t most_buckets() const noexcept { return words_.capacity(); }

  /// Keeps to `plan` from `now` on.
  void freeze(Plan plan, TimePoint now);

  /// Takes the submission if it belongs to the plan, which is given up for any other. Due: its
  /// bucket may run, peers have to be woken, or its deadline comes first.
  Intake put(Submission& submission) override;

  /// Lazy buckets up to that of `work` are run like others. A thread that waits also thaws, if this
  /// rank has to submit something else first.
  bool expedite(const WorkState& work, bool waits) override;
  bool is_expedited() const;

  /// Gives the plan up, if there is one.
  void thaw(Thaw reason);

  /// Thaws for what has waited too long.
  void inspect(TimePoint now);

  /// While frozen there always is such a time, as submissions are taken silently.
  std::optional<TimePoint> due() const override;

  /// The end of a thaw.
  struct Remains {
    std::vector<Submission> submissions;  ///< to be negotiated
    Thaw reason = Thaw::Submission;
    std::uint64_t rounds = 0;  ///< how often the plan was run
    std::string cause;         ///< for the log: what this rank gave it up for, if it did
  };
  /// What the loop has to do next.
  struct Next {
    std::vector<Submission> bucket;       ///< that all ranks run; empty: none
    bool is_group = false;                ///< these are the operations of a group
    std::optional<Remains> remains = {};  ///< after a thaw, once there are no more buckets
    bool is_last = true;                  ///< there is nothing behind it yet
  };
  /// Takes it; after a thaw, what the ranks had committed until then. Wakes sleeping peers if
  /// something has changed for them since the last call.
  Next take();

  /// Removes and returns everything unfinished: the group is dead.
  std::vector<Submission> drain();

  bool is_frozen() const noexcept { return frozen_.load(std::memory_order_relaxed); }
  std::vector<std::string> pending_names() const;
  const Counters& counters() const noexcept { return counters_; }

 private:
  struct Place {
    std::size_t bucket = 0;
    std::size_t entry = 0;

    bool operator==(const Place&) const = default;
  };
  struct Entry {
    Item item;
    SpecPtr spec;  ///< what this rank submits
    Place next;    ///< where the same name comes next in a round, or in the round after it
    std::optional<Submission> submission;
  };
  struct Bucket {
    std::vector<Entry> entries;
    std::size_t missing = 0;
    std::uint32_t step = 1;    ///< the one it is filled for
    std::uint64_t digest = 0;  ///< of all that came in, added up
    bool raised = false;
    bool lazy = true;  ///< all that came in are (Request::lazy)
    TimePoint since;   ///< of the first submission, or of the raise
  };
  void add_place(Place place);
  Entry& entry_at(Place place) { return buckets_[place.bucket].entries[place.entry]; }
  Place* find(const Submission& submission);
  bool fill(Place& next, Submission& submission);
  bool request_wake(Board::Whom whom);
  void thaw_locked(Thaw reason, std::string cause = {});
  TimePoint first_limit(TimePoint now) const;
  bool has_news() const;
  bool committed(std::size_t bucket) const;
  bool next_is_due() const;
  std::optional<std::size_t> next_to_run() const;
  std::vector<Submission> empty(Bucket& bucket);
  std::optional<Remains> finish_thaw();
  std::vector<Submission> take_submissions();
  void reset();

  Board& board_;
  const int rank_;
  const Duration longest_wait_;
  EventLog& events_;
  ArrivalWords words_;
  Counters counters_;

  // Guarded by mutex_.
  std::mutex& mutex_;
  std::uint32_t generation_ = 0;
  std::atomic<bool> frozen_{false};  ///< read by is_frozen() without the mutex
  bool thawing_ = false;             ///< frozen, but the words are closed
  std::string cause_;                ///< Remains::cause
  Duration patience_{};
  Duration limit_{};  ///< the shorter one of patience_ and longest_wait_
  TimePoint frozen_since_{};
  TimePoint inspection_{};  ///< no limit passes before
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;       ///< the bucket to run next
  std::size_t expedited_ = 0;  ///< so many buckets from next_ on are not put off
  /// Where what has a name comes next.
  std::unordered_map<SpecPtr, Place, SpecHash, SpecEqual> places_;
  std::vector<Place> unnamed_;  ///< in the order of calls
  std::size_t next_unnamed_ = 0;
  std::optional<Board::Whom> wake_due_;  ///< whom the loop has to wake
};

/// The schedule of this rank, which `queue` asks first from now on; null if none is ever frozen.
std::unique_ptr<FrozenSchedule> make_schedule(const Config& config, int rank, int ranks,
                                              Board& board, SubmissionQueue& queue,
                                              const Logger& log);

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/events/event_log.h"
#include "core/src/negotiate/response_cache.h"
#include "core/src/schedule/arrival_words.h"
#include "core/src/submit/submission.h"
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
/// the order of the plan, round after round.
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
/// Thread-safety: every member may be called from any thread.
class FrozenSchedule {
 public:
  using Clock = std::chrono::steady_clock;

  /// An operation of the plan, as this rank submits it.
  struct Item {
    CachedResponse response;
    bool contributes = true;  ///< this rank does
    bool contributed = true;  ///< any rank does
  };
  struct Plan {
    std::vector<std::vector<Item>> buckets;
    /// How long a bucket may stay incomplete on this rank, or stand behind one that is.
    Clock::duration patience{};
  };

  enum class Thaw : std::uint8_t { Submission, Wait, TimeLimit, Shutdown, Tuning };

  struct Counters {
    Counter freezes, thaws, thaws_by_submission, thaws_by_wait, thaws_by_time_limit,
        thaws_by_tuning, tensors, buckets;
  };

  /// `longest_wait`: how long peers may take to raise what this rank has raised; zero for ever.
  FrozenSchedule(Board& board, int rank, int ranks, Clock::duration longest_wait, EventLog& events);

  std::size_t most_buckets() const noexcept { return words_.capacity(); }

  /// Keeps to `plan` from now on.
  void freeze(Plan plan);

  enum class Intake {
    Deviates,  ///< it does not belong to the plan, which is given up for it
    Taken,
    Watched,   ///< taken, and due() is earlier because of it
    Committed  ///< taken, and the loop has to run, for its bucket or to wake peers
  };
  /// Takes the submission over if it belongs to the plan.
  Intake accept(Submission& submission);

  /// Somebody wants `work` done: lazy buckets up to its own are run like others. False: they are
  /// already.
  bool expedite(const WorkState& work);
  bool is_expedited() const;

  /// Somebody waits for `work`: as expedite(), and thaws if this rank has to submit something else
  /// first.
  void wait_for(const WorkState& work);

  /// Gives the plan up, if there is one.
  void thaw(Thaw reason);

  /// Thaws for what has waited too long.
  void inspect(Clock::time_point now);

  /// When inspect() is due. While frozen there always is such a time, as submissions are taken
  /// silently.
  std::optional<Clock::time_point> due() const;

  /// Something is to be taken, or the end of a thaw.
  bool has_news() const;

  /// The next bucket that all ranks run; after a thaw, what they had committed until then. Wakes
  /// sleeping peers if something has changed for them since the last call.
  std::optional<std::vector<Submission>> take();

  /// The end of a thaw, once all committed buckets are taken: submissions to negotiate. Nothing
  /// while the schedule is kept, or there is none.
  struct Remains {
    std::vector<Submission> submissions;
    Thaw reason = Thaw::Submission;
    std::uint64_t rounds = 0;  ///< how often the plan was run
    std::string cause;         ///< for the log: what this rank gave it up for, if it did
  };
  std::optional<Remains> finish_thaw();

  /// Removes and returns everything unfinished: the group is dead.
  std::vector<Submission> drain();

  bool is_frozen() const;
  std::vector<std::string> pending_names() const;
  const Counters& counters() const noexcept { return counters_; }

 private:
  struct Entry {
    Item item;
    RequestMeta meta;  ///< what this rank submits
    std::optional<Submission> submission;
  };
  struct Bucket {
    std::vector<Entry> entries;
    std::size_t missing = 0;
    std::uint32_t step = 1;  ///< the one it is filled for
    bool raised = false;
    bool lazy = true;         ///< all that came in are (Request::lazy)
    Clock::time_point since;  ///< of the first submission, or of the raise
  };
  struct Place {
    std::size_t bucket = 0;
    std::size_t entry = 0;
  };

  const Place* find(const Submission& submission) const;
  Intake put(Place place, Submission& submission);
  bool note_change(Board::Whom whom);
  void thaw_locked(Thaw reason, std::string cause = {});
  bool committed(std::size_t bucket) const;
  bool next_is_due() const;
  std::optional<std::size_t> next_to_run() const;
  bool expedite_locked(const WorkState& work);
  std::vector<Submission> empty(Bucket& bucket);
  std::vector<Submission> take_submissions();
  void reset();

  Board& board_;
  const int rank_;
  const Clock::duration longest_wait_;
  EventLog& events_;
  ArrivalWords words_;
  Counters counters_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::uint32_t generation_ = 0;
  bool frozen_ = false;
  bool thawing_ = false;  ///< frozen, but the words are closed
  std::string cause_;     ///< Remains::cause
  Clock::duration patience_{};
  Clock::time_point frozen_since_{};
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;       ///< the bucket to run next
  std::size_t expedited_ = 0;  ///< so many buckets from next_ on are not put off
  std::unordered_map<std::string, Place> places_;  ///< by name
  std::vector<Place> unnamed_;                     ///< in the order of calls
  std::size_t next_unnamed_ = 0;
  std::optional<Board::Whom> notify_due_;  ///< whom the loop has to wake
};

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
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
#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/events/event_log.h"
#include "core/src/op/submission.h"
#include "core/src/op/submission_queue.h"
#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/plugin/board.h"

namespace ronde {

/// Executes a plan without messages while the programs of all ranks repeat the same operations.
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
/// A bucket of lazy operations may be committed long before this rank runs it: waiting peers do its
/// work, as the buffers are symmetric. This rank runs it only once a thread waits for or polls one
/// of its operations, or has submitted something later that is not lazy. It wakes no peer before,
/// so that the cores go on computing.
///
/// Thread-safety: every member may be called from any thread; those of Agreement, and freeze(),
/// with the mutex held.
class FrozenSchedule final : public Agreement {
 public:
  struct Item {
    SpecPtr spec;             ///< what this rank submits
    SharedRows rows = {};     ///< as CachedResponse::rows
    bool contributes = true;  ///< this rank contributes
    bool contributed = true;  ///< any rank contributes
  };
  struct Plan {
    std::vector<std::vector<Item>> buckets;
    /// How long a bucket may stay incomplete on this rank, or stand behind one that is.
    Duration patience{};
  };

  /// Returns the plan of the slots in `message`, whose operations `announcer` knows.
  static Plan plan_of(const ScheduleMessage& message, const Announcer& announcer);

  enum class Thaw : std::uint8_t { Submission, Wait, TimeLimit, Shutdown, Tuning };
  static const char* text_of(Thaw reason);

  struct Counters {
    Counter freezes, thaws, thaws_by_submission, thaws_by_wait, thaws_by_time_limit,
        thaws_by_tuning, tensors, buckets;
  };

  /// `longest_wait`: how long peers may take to raise what this rank has raised; zero: no limit.
  /// `mutex`: of the SubmissionQueue. The references outlive this.
  FrozenSchedule(Board& board, int rank, int ranks, Duration longest_wait, EventLog& events,
                 std::mutex& mutex);

  std::size_t most_buckets() const noexcept { return words_.capacity(); }

  void freeze(Plan plan, TimePoint now);

  /// Accepts the submission if it belongs to the plan, and thaws for any other. Returns Due if its
  /// bucket may run, peers have to be woken, or its deadline comes first.
  Intake put(Submission& submission) override;

  /// Has lazy buckets up to that of `work` run like others. A thread that waits also thaws if this
  /// rank has to submit something else first.
  bool expedite(const WorkState& work, bool waits) override;
  bool is_expedited() const;

  void thaw(Thaw reason);

  void inspect(TimePoint now);

  /// Always a time while frozen, as put() does not wake the loop.
  std::optional<TimePoint> due() const override;

  struct Remains {
    std::vector<Submission> submissions;  ///< to be negotiated
    Thaw reason = Thaw::Submission;
    std::uint64_t rounds = 0;  ///< how often the plan was run
    std::string cause;         ///< for the log: why this rank thawed; empty if a peer did
  };
  struct Next {
    std::vector<Submission> bucket;       ///< committed: to be run; may be empty
    bool is_group = false;                ///< the bucket holds the operations of a group
    std::optional<Remains> remains = {};  ///< after a thaw, once no committed bucket is left
    bool is_last = true;                  ///< nothing follows yet
  };
  /// Removes and returns what the loop has to do next. Wakes sleeping peers if something has
  /// changed for them since the last call.
  Next take();

  /// Removes and returns everything unfinished, as the group has failed.
  std::vector<Submission> drain();

  bool is_frozen() const noexcept { return frozen_.load(std::memory_order_relaxed); }
  std::vector<std::string> pending_names() const;
  const Counters& counters() const noexcept { return counters_; }

 private:
  struct Place {
    std::size_t bucket = 0;
    std::size_t entry = 0;
  };
  /// The places of one name, or of all operations without one, in the order of the plan; and that
  /// of the next submission.
  struct Places {
    std::vector<Place> all;
    std::size_t next = 0;
  };
  struct Entry : Item {
    std::optional<Submission> submission = {};
  };
  struct Bucket {
    std::vector<Entry> entries;
    std::size_t missing = 0;
    std::uint32_t step = 1;    ///< the step that is being filled
    std::uint64_t digest = 0;  ///< sum over its submissions
    bool raised = false;
    bool lazy = true;  ///< every submission so far is lazy (Request::lazy)
    TimePoint since;   ///< of the first submission, or of the raise
  };
  Places* find(const Submission& submission);
  bool fill(Places& places, Submission& submission);
  bool request_wake(Board::Whom whom);
  void thaw_locked(Thaw reason, std::string cause = {});
  TimePoint first_limit(TimePoint now) const;
  bool has_news() const;
  bool committed(std::size_t bucket) const;
  bool next_is_due() const;
  std::optional<std::size_t> next_to_run() const;
  std::vector<Submission> empty(Bucket& bucket);
  std::vector<Submission> take_submissions();
  void reset();

  Board& board_;
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
  std::unordered_map<SpecPtr, Places, SpecHash, SpecEqual> named_;
  Places unnamed_;
  std::optional<Board::Whom> wake_due_;  ///< peers that the loop has to wake
};

/// Makes the schedule of this rank, which `queue` asks first from now on; null if none is ever
/// frozen.
std::unique_ptr<FrozenSchedule> make_schedule(const Config& config, int rank, int ranks,
                                              Board& board, SubmissionQueue& queue,
                                              const Logger& log);

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/agree/response_cache.h"
#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"

namespace ronde {

/// A leader's side of negotiation: merges what all ranks below it, and itself, are ready for into
/// one message a cycle for the rank above. Pure bookkeeping: no I/O, no clock of its own.
///
/// Note [Combining]
/// The leader holds back what only some of its ranks have announced, as it cannot be agreed on yet.
/// It scatters such announcements, that is, sends them as they were made, by a rank or by a leader
/// below for the ranks that it had merged, as soon as rank 0 may have to know who is missing: after
/// `patience` (for stalls), before a timeout that passed or a shutdown, and when ranks announce one
/// name differently (gathered rows may differ in number) or one has joined. Once a part of an
/// operation was scattered, the rest is, too, until it is agreed. A rank's announcements may thus
/// overtake each other, but none overtakes a timeout or a shutdown of its rank, as these are never
/// merged and follow all that is; and point-to-point messages keep their order. The rank above
/// relies on nothing more.
///
/// Slots have their meaning after the last decision that has passed, whose number the messages
/// carry. The leader drops announcements of slots that were reassigned, as rank 0 would, and the
/// rank repeats them when it sees that decision (Note [Slots and decisions in flight]). The same
/// holds for a shutdown and a join.
///
/// Thread-safety: none; owned by whoever runs the loop of the leader (the counters: any thread).
class Combiner {
 public:
  using Ranks = std::vector<std::int32_t>;

  /// Messages to the rank above; operations sent once for all ranks, and scattered.
  struct Counters {
    Counter messages, combined, scattered;
  };

  /// `ranks`: this one and those below it, ascending, by their numbers within the process set.
  /// `members`: the numbers in the group of all ranks of the set; empty: the same as within the
  /// set.
  Combiner(Ranks ranks, Duration patience, std::vector<int> members = {});

  /// Adds a part of a message from below.
  void add(const Ranks& from, const ReadyMessage& message, TimePoint now);
  void add(int rank, const ReadyMessage& message, TimePoint now) { add(Ranks{rank}, message, now); }

  /// Handles a decision before it is forwarded to the ranks below.
  void pass(const DecisionMessage& decision);

  /// Removes and returns the message that is due to the rank above, if any.
  std::optional<HostReadyMessage> take(TimePoint now);

  /// Returns the time at which take() is due even if nothing is added before.
  std::optional<TimePoint> next_deadline() const;

  const Counters& counters() const noexcept { return counters_; }

 private:
  /// A sender's part of an operation.
  struct Part {
    std::size_t sender = 0;
    bool contributes = true;
    std::uint64_t digest = 0;
  };
  /// An operation that some ranks have announced alike.
  struct Held {
    Announcement item;
    std::vector<Part> parts;
    std::size_t count = 0;  ///< of ranks
    TimePoint since;
  };

  std::string name_of(int rank) const;
  Ranks ranks_of(std::size_t sender) const;
  std::size_t sender_of(const Ranks& from);
  void add_cached(std::size_t sender, const ReadyMessage& message, TimePoint now);
  void add_item(std::size_t sender, const Announcement& item, TimePoint now);
  void forget_marks(const DecisionMessage& decision);
  void count_refusal(const Response& response);

  void combine_bits();
  void scatter_bits(const BitVector& bits);
  void scatter_items(const std::string& key);
  void scatter_name(const std::string& name);
  void scatter_all();
  void scatter_old(TimePoint now);
  void seal();

  const Ranks ranks_;
  const std::vector<int> members_;
  const Duration patience_;

  std::uint64_t passed_ = 0;     ///< number of the last decision that passed
  std::uint64_t voided_at_ = 0;  ///< number of the last one that voids_announcements()
  SlotTable slots_;  ///< named operations held back; single senders are places in ranks_
  std::unordered_map<std::string, Held> held_;
  std::optional<TimePoint> oldest_;  ///< when the oldest operation held back came
  BitVector scattered_slots_;        ///< slots of which a part was scattered
  /// Keys of which a part was scattered, and how often each of ranks_ was refused one since.
  std::unordered_map<std::string, std::vector<std::uint64_t>> scattered_keys_;
  bool has_joined_ = false;  ///< a rank has joined: nothing will be complete
  bool has_news_ = false;    ///< since the last take()

  ReadyMessage for_all_;                         ///< sent for all ranks,
  std::map<std::size_t, ReadyMessage> of_each_;  ///< followed by those of senders
  HostReadyMessage sealed_;                      ///< sent before both
  Counters counters_;
};

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/src/base/counter.h"
#include "core/src/negotiate/late_refusals.h"
#include "core/src/negotiate/message_matcher.h"
#include "core/src/negotiate/messages.h"
#include "core/src/negotiate/response_cache.h"
#include "core/src/negotiate/slot_table.h"
#include "core/src/negotiate/waiting_operation.h"

namespace ronde {

/// Rank 0's side of negotiation in one process set: takes what every rank of it is ready for and
/// decides what all execute. Ranks are those within the set, but for texts and WaitingOperation.
/// Pure bookkeeping: no I/O, no clock of its own.
///
/// Note [Slots and decisions in flight]
/// Slots are reused, and a rank may name a slot while a decision that gives it to another operation
/// is on its way. So every ready message tells the last decision its rank has applied; a slot that
/// was reassigned after that is ignored here, and the rank, when it applies the reassignment,
/// announces the operation again in full (Announcer::forget_slot). A slot that any rank is known to
/// be waiting on is never reassigned.
///
/// What a rank tells last, that it has joined or calls shutdown, must not overtake an operation
/// that is yet to be announced again. So it counts only if its rank had applied every decision that
/// assigned slots (DecisionMessage::voids_announcements); if not, the rank tells it again when it
/// does. Once too often does no harm: what was told before a join ended is not of the next one.
///
/// Thread-safety: none; owned by the coordinator thread of rank 0.
class Negotiator {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Counters {
    Counter decisions, agreed_by_slot, agreed_in_full, messages, refused, evictions;
  };

  /// What an average divides by while ranks have joined.
  enum class JoinAverage : std::uint8_t { Contributing, All };

  /// `members`: the ranks of the group that are in the set, in its order. `set`: its number.
  Negotiator(std::vector<int> members, std::uint64_t cache_capacity, ValidateRequest validate,
             JoinAverage join_average = JoinAverage::Contributing, std::uint32_t set = 0);

  /// Takes in the message of a rank, or of ranks that are all ready for this. Throws ronde::Error
  /// on one that makes no sense.
  void add(const std::vector<std::int32_t>& ranks, const ReadyMessage& message, TimePoint now);
  void add(int rank, const ReadyMessage& message, TimePoint now) {
    add(std::vector<std::int32_t>{rank}, message, now);
  }

  /// What has been agreed since the last call, if anything. `may_stop`: it may be the last decision
  /// of all.
  std::optional<DecisionMessage> decide(bool may_stop = true);

  /// Rank 0 had waited for a result before it submitted some of what the last decision, or one soon
  /// after it, agreed on.
  bool take_after_wait() noexcept { return std::exchange(after_wait_, false); }

  /// What to tell the user of this set, once: the cache has evicted twice what it holds without
  /// any of it having been used again.
  std::optional<std::string> take_warning() { return std::exchange(warning_, std::nullopt); }

  /// Nothing stands in the way of a frozen schedule.
  bool may_freeze() const;

  /// The last decision freezes a schedule: what ranks have announced until they see it is void, and
  /// those ranks know.
  void freeze();

  /// Everything that some rank waits for, oldest first.
  std::vector<WaitingOperation> waiting() const;

  /// Nothing waits: waiting() would be empty.
  bool idle() const;

  /// Set when an operation waits for a rank that has called shutdown and so will never come.
  std::optional<FailureMessage> departure() const;

  /// Set when more has been refused that ranks have yet to come to than may be kept.
  std::optional<FailureMessage> overflow() const;

  bool all_shut_down() const noexcept { return shutdown_count_ == size_; }
  bool any_shut_down() const noexcept { return shutdown_count_ > 0; }
  /// Ranks of the group that have not called shutdown, ascending.
  std::vector<int> not_shut_down() const;

  const Counters& counters() const noexcept { return counters_; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  /// One rank's part of a pending operation.
  struct Part {
    bool present = false;
    bool stands_in = false;  ///< its rank has joined: the rest is that of another
    bool contributes = true;
    RequestMeta meta;
    std::int64_t slot = -1;           ///< announced by this slot...
    std::uint64_t slot_assigned = 0;  ///< ...as it was assigned then
  };
  struct Pending {
    std::vector<Part> parts;  ///< by rank
    int count = 0;
    TimePoint since;
    std::vector<std::string> names;  ///< those that stand for it in unit_of_name_
  };

  std::size_t sender_of(const std::vector<std::int32_t>& ranks);
  void add_cached(const std::vector<std::int32_t>& ranks, const ReadyMessage& message,
                  TimePoint now);
  void add_rest(int rank, const ReadyMessage& message, TimePoint now);
  void add_part(int rank, const std::string& key, Part part, TimePoint now);
  void add_expired(int rank, const std::string& key, TimePoint now);
  Part part_of_slot(int rank, std::uint32_t slot, bool contributes) const;
  bool is_stale(std::uint32_t slot, const ReadyMessage& message) const;
  Pending& pending_of(const std::string& key, TimePoint since);
  void demote(const std::string& key);

  // negotiator_join.cc
  void add_join(int rank, std::uint64_t unnamed_before);
  void add_message(int rank, const FullRequest& request, TimePoint now);
  bool has_joined(int rank) const { return joined_[index(rank)]; }
  bool is_complete(const Pending& pending) const;
  void decide_without_joined(const std::string& key, Pending pending, DecisionMessage& decision);
  void end_join(DecisionMessage& decision);
  std::string joined_text(const std::string& what) const;
  std::optional<WaitingOperation> waiting_join() const;

  // negotiator_refusals.cc
  /// By name: ranks to which its present use was refused.
  using Uses = std::map<std::string, std::set<int>>;
  static std::vector<std::string> names_of(const std::string& key, const RequestMeta& meta);
  Pending take_pending(const std::string& key);
  bool refuse_latecomer(int rank, const std::string& key, const RequestMeta& meta);
  void refuse_conflicts(const std::string& key, const std::vector<std::string>& names);
  void settle_refusal(const std::string& key, const Pending& pending, const std::string& text);
  void refuse_unit(const std::string& key, const std::string& text, Uses& refused);
  void refuse_part(int rank, const std::string& key, const std::string& text, Uses& refused);
  void push_refusal(int rank, const std::string& key, const std::string& text);
  void settle(Uses refused, const std::string& text);
  bool refuse_one_more(Uses& refused, const std::string& text);

  void decide_cached(DecisionMessage& decision);
  void decide_pending(DecisionMessage& decision);
  void decide_messages(DecisionMessage& decision);
  std::optional<std::uint32_t> slot_for_all(const Pending& pending) const;
  Response agree(const std::string& key, const Pending& pending);
  std::string disagreement(const std::string& key, const Pending& pending) const;
  static bool contributed(const Pending& pending);
  static Pending member_of(const Pending& group, std::size_t member);
  static std::string key_of_member(const RequestMeta& group, std::size_t member);
  static RankRows rows_of(const Pending& pending);
  static std::optional<std::size_t> only_different_member(const Pending& pending);
  std::string mismatch(const std::string& key, const Pending& pending) const;
  std::string refusal(const std::string& key, const Pending& pending) const;
  std::string error_of_all_rows(const Pending& pending) const;
  std::int32_t choose_slot(const std::string& key);
  void evict(std::uint32_t slot);
  bool is_referenced(std::uint32_t slot) const;
  /// Calls `visit(rank, contributes)` for every rank that is ready for the slot.
  template <typename Visit>
  void for_each_ready(std::uint32_t slot, Visit visit) const;
  WaitingOperation waiting_operation(const std::string& key, const RequestMeta& meta,
                                     TimePoint since,
                                     const std::function<bool(int)>& is_ready) const;

  std::vector<int> named(const std::vector<int>& ranks) const;
  /// The ranks of the set for which `holds(rank)`, as named().
  template <typename Holds>
  std::vector<int> named_if(Holds holds) const;
  std::string listed(const std::map<std::string, std::vector<int>>& ranks_of) const;

  const std::vector<int> members_;  ///< by rank within the set
  const int size_;
  const std::uint64_t cache_capacity_;
  const ValidateRequest validate_;

  std::uint64_t decisions_ = 0;
  ResponseCache cache_{0};
  SlotTable slots_;
  std::vector<std::uint64_t> last_used_;  ///< by slot
  /// Ranks that announce slots together, those of a host: what their sender is in slots_.
  std::map<std::vector<std::int32_t>, std::size_t> sender_of_;
  std::vector<std::vector<std::int32_t>> hosts_;  ///< the same, by sender - size_
  std::uint64_t wasted_ = 0;  ///< slots that were evicted without having been used
  std::optional<std::string> warning_;
  std::unordered_map<std::string, Pending> pending_;
  std::vector<std::string> complete_;  ///< keys in pending_ that all ranks have submitted, in order
  std::vector<Response> refusals_;     ///< errors to send with the next decision
  /// The pending operation that uses a name: its own key, or that of a group.
  std::unordered_map<std::string, std::string> unit_of_name_;
  LateRefusals latecomers_;
  MessageMatcher messages_;
  const JoinAverage join_average_;
  const std::uint32_t set_;
  std::vector<bool> joined_;  ///< by rank
  int joined_count_ = 0;
  int last_joined_ = -1;
  std::uint64_t next_unnamed_ = 0;  ///< the most operations without a name of those that joined
  std::vector<bool> shutdown_;      ///< by rank
  int shutdown_count_ = 0;
  bool after_wait_ = false;
  std::uint64_t frozen_at_ = 0;  ///< number of the last decision that froze a schedule
  std::uint64_t voided_at_ = 0;  ///< the same for DecisionMessage::voids_announcements
  bool stopped_ = false;
  Counters counters_;
};

template <typename Holds>
std::vector<int> Negotiator::named_if(Holds holds) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (holds(rank)) ranks.push_back(rank);
  }
  return named(ranks);
}

}  // namespace ronde

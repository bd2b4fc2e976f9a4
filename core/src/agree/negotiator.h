// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/src/agree/late_refusals.h"
#include "core/src/agree/message_matcher.h"
#include "core/src/agree/messages.h"
#include "core/src/agree/response_cache.h"
#include "core/src/agree/stalls.h"
#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"

namespace ronde {

/// Rank 0's side of negotiation in one process set: gathers what its ranks are ready for and
/// decides what all of them execute. Ranks are numbered within the set, except in texts and
/// WaitingOperation. Pure bookkeeping: no I/O, no clock of its own.
///
/// Note [Slots and decisions in flight]
/// Slots are reused, and a rank may name a slot while a decision that reassigns it is in flight, so
/// every ready message carries the number of the last decision that its rank has applied. Rank 0
/// ignores slots that were reassigned later, and the rank announces the operation again in full
/// when it applies the reassignment (Announcer::forget_slot). A slot that a rank is known to wait
/// on is never reassigned.
///
/// A join or a shutdown must not overtake an operation that its rank has yet to announce again. It
/// counts only if the rank had applied every decision that assigned slots
/// (DecisionMessage::voids_announcements); if not, the rank repeats it, which does no harm.
///
/// Thread-safety: none; owned by whoever runs the loop of rank 0.
class Negotiator {
 public:
  using Ranks = std::vector<std::int32_t>;

  struct Counters {
    Counter decisions, agreed_by_slot, agreed_in_full, messages, refused, evictions;
  };

  /// The divisor of an average while ranks have joined.
  enum class JoinAverage : std::uint8_t { Contributing, All };

  /// `members`: the ranks of the group that are in the set, in its order. `set`: its number.
  /// `cache`: shared with this rank's Announcer, if it has one; outlives this.
  Negotiator(std::vector<int> members, ResponseCache& cache, std::uint64_t cache_capacity,
             ValidateRequest validate, JoinAverage join_average = JoinAverage::Contributing,
             std::uint32_t set = 0);

  /// Handles the message of a rank, or of ranks that are all ready for its contents. Throws
  /// ronde::Error if it is invalid.
  void add(const Ranks& ranks, const ReadyMessage& message, TimePoint now);
  void add(int rank, const ReadyMessage& message, TimePoint now) { add(Ranks{rank}, message, now); }

  /// Returns what was agreed since the last call, if anything. `may_stop`: it may be the last
  /// decision of all.
  std::optional<DecisionMessage> decide(bool may_stop = true);

  /// Returns, and clears, whether rank 0 waited for a result before it submitted a part of recent
  /// decisions.
  bool take_after_wait() noexcept { return std::exchange(after_wait_, false); }
  /// Removes and returns a warning for the user: the cache has evicted twice its capacity unused.
  std::optional<std::string> take_warning() { return std::exchange(warning_, std::nullopt); }

  /// Returns whether nothing pending prevents a frozen schedule.
  bool may_freeze() const;
  /// Drops what is pending, as the last decision freezes a schedule and so voids it.
  void freeze();

  /// Returns everything that some rank waits for, oldest first.
  std::vector<WaitingOperation> waiting() const;
  bool idle() const {
    return joined_count_ == 0 && pending_.empty() && messages_.idle() && slots_.idle();
  }
  /// Returns a failure when an operation waits for a rank that has called shutdown, and so will
  /// never submit it.
  std::optional<FailureMessage> departure() const;
  /// Returns a failure when more refusals wait for late ranks than may be kept.
  std::optional<FailureMessage> overflow() const;
  bool all_shut_down() const noexcept { return shutdown_count_ == size_; }
  bool any_shut_down() const noexcept { return shutdown_count_ > 0; }
  /// Returns the earliest end of the time that a rank in shutdown gives the others.
  std::optional<TimePoint> shutdown_limit() const noexcept { return shutdown_limit_; }
  /// Returns the ranks of the group that have not called shutdown, ascending.
  std::vector<int> not_shut_down() const;
  const Counters& counters() const noexcept { return counters_; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  /// One rank's part of a pending operation.
  struct Part {
    bool stands_in = false;  ///< its rank has joined: the spec is another rank's
    bool contributes = true;
    std::uint64_t digest = 0;
    SpecPtr spec = {};
    std::int64_t slot = -1;           ///< the slot that announced it, if one did
    std::uint64_t slot_assigned = 0;  ///< the decision that had assigned the slot

    bool present() const noexcept { return spec && !stands_in; }
  };
  struct Pending {
    std::vector<Part> parts;  ///< by rank
    int count = 0;
    TimePoint since;
    std::vector<std::string> names;  ///< its keys in unit_of_name_
  };

  void add_cached(const Ranks& ranks, const ReadyMessage& message, TimePoint now);
  void add_rest(int rank, const ReadyMessage& message, TimePoint now);
  void add_part(int rank, const std::string& key, Part part, TimePoint now);
  void add_expired(int rank, const std::string& key, TimePoint now);
  Part part_of_slot(int rank, std::uint32_t slot) const;
  bool is_stale(std::uint32_t slot, const ReadyMessage& message) const;
  Pending& pending_of(const std::string& key, TimePoint since);
  void demote(const std::string& key);

  // Note [Joining]
  void add_join(int rank, std::uint64_t unnamed_before);
  bool has_joined(int rank) const { return joined_[index(rank)]; }
  bool is_complete(const Pending& pending) const;
  void decide_without_joined(const std::string& key, Pending pending, DecisionMessage& decision);
  void end_join(DecisionMessage& decision);
  std::string joined_text(const std::string& what) const;

  // Note [Refusals in step]
  /// By name: ranks to which its current use was refused.
  using Uses = std::map<std::string, std::set<int>>;
  static std::vector<std::string> names_of(const std::string& key, const OpSpec& spec);
  Pending take_pending(const std::string& key);
  bool refuse_latecomer(int rank, const std::string& key, const OpSpec& spec);
  void refuse_conflicts(const std::string& key, const std::vector<std::string>& names);
  void record_refusal_of_group(const std::string& key, const Pending& pending,
                               const std::string& text);
  void refuse_unit(const std::string& key, const Refusal& why, Uses& refused);
  void refuse_part(int rank, const std::string& key, const Refusal& why, Uses& refused);
  void push_refusal(int rank, const std::string& key, Refusal why);
  void record_refusal(Uses refused, const Refusal& why);
  bool refuse_one_more(Uses& refused, const Refusal& why);

  void decide_pending(DecisionMessage& decision);
  std::optional<std::uint32_t> slot_for_all(const Pending& pending) const;
  Response agree(const std::string& key, const Pending& pending);
  void set_agreed(Response& response, SpecPtr spec, const Pending& pending);
  Problem disagreement(const std::string& key, const Pending& pending) const;
  static bool contributed(const Pending& pending);
  static std::uint64_t digest_of(const Pending& pending);
  static Pending member_of(const Pending& group, std::size_t member);
  static RankRows rows_of(const Pending& pending);
  Problem mismatch(const std::string& key, const Pending& pending) const;
  Problem refusal(const std::string& key, const Pending& pending) const;
  Problem impossibility(const std::string& key, const Pending& pending) const;
  Problem error_of_all_rows(const Pending& pending) const;
  std::int32_t choose_slot(const std::string& key);
  void evict(std::uint32_t slot);
  bool is_referenced(std::uint32_t slot) const;
  void for_each_ready(std::uint32_t slot, const std::function<void(int, bool)>& visit) const;
  WaitingOperation waiting_operation(const std::string& key, const OpSpec& spec,
                                     const std::function<bool(int)>& is_ready) const;

  std::vector<int> named_if(const std::function<bool(int)>& holds) const;
  std::string listed(const std::map<std::string, std::vector<int>>& ranks_of) const;
  std::string listed(const Pending& pending,
                     const std::function<std::string(const Part&)>& text_of) const;

  const std::vector<int> members_;  ///< by rank within the set
  const int size_;
  const std::uint64_t cache_capacity_;
  const ValidateRequest validate_;

  std::uint64_t decisions_ = 0;
  ResponseCache& cache_;
  SlotTable slots_;
  std::vector<std::uint64_t> last_used_;  ///< by slot
  std::uint64_t wasted_ = 0;              ///< slots that were evicted unused
  std::optional<std::string> warning_;
  std::unordered_map<std::string, Pending> pending_;
  std::vector<std::string> complete_;  ///< keys in pending_ that all ranks have submitted, in order
  std::vector<Response> refusals_;     ///< errors to send with the next decision
  /// By name: the key of the pending operation or group that uses it.
  std::unordered_map<std::string, std::string> unit_of_name_;
  LateRefusals latecomers_;
  MessageMatcher messages_;
  const JoinAverage join_average_;
  const std::uint32_t set_;
  std::vector<bool> joined_;  ///< by rank
  int joined_count_ = 0;
  int last_joined_ = -1;
  /// The rank of the group that completed the latest operation since the last decision; -1: none,
  /// or ranks that a leader has merged.
  int last_rank_ = -1;
  std::uint64_t next_unnamed_ = 0;  ///< maximum over ranks that joined
  std::vector<bool> shutdown_;      ///< by rank
  int shutdown_count_ = 0;
  std::optional<TimePoint> shutdown_limit_;
  bool after_wait_ = false;
  std::uint64_t frozen_at_ = 0;  ///< number of the last decision that froze a schedule
  std::uint64_t voided_at_ = 0;  ///< number of the last one that voids_announcements()
  bool stopped_ = false;
  Counters counters_;
};

}  // namespace ronde

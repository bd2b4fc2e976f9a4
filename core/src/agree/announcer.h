// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/agree/response_cache.h"
#include "core/src/base/counter.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/events/event_log.h"
#include "core/src/op/submission.h"

namespace ronde {

/// An operation that failed in negotiation.
struct Refused {
  Submission submission;
  std::string text;
  std::vector<int> missing = {};  ///< as Response::missing
};

/// The part of a decision that concerns this rank.
struct AppliedDecision {
  std::vector<Submission> agreed;  ///< the same operations in the same order on every rank
  std::vector<Refused> refused;
  bool shutdown = false;
  /// All ranks have joined, this one by this submission.
  std::optional<Submission> join = {};
  std::uint64_t next_unnamed = 0;  ///< with `join`: DecisionMessage::next_unnamed
};

/// Every rank's side of negotiation: keeps what this rank submitted until it is decided, and
/// announces it to rank 0, by slot where the response is cached.
///
/// Thread-safety: none; owned by whoever runs the loop (the counters: any thread).
class Announcer {
 public:
  struct Counters {
    Counter cache_hits, cache_misses, reannounced, expired;
  };

  /// `cache`: this rank's. `events`: null if nothing is recorded. Both outlive this.
  explicit Announcer(ResponseCache& cache, EventLog* events = nullptr)
      : cache_(cache), events_(events) {}

  void add(Submission submission);

  /// Returns the announcement of everything that is new since the last call, if anything is.
  /// `shutdown`: this rank submits nothing more.
  std::optional<ReadyMessage> announce(TimePoint now, bool shutdown);

  /// Decisions must come in order, each once. Throws ronde::Error if one does not fit.
  AppliedDecision apply(const DecisionMessage& decision);

  /// Returns the last agreement on a slot; contributed(): whether this rank took part with data.
  const CachedResponse& response(std::uint32_t slot) const { return cache_.at(slot); }
  bool contributed(std::uint32_t slot) const { return !absent_.test(slot); }

  /// Returns whether this rank waits for no decision.
  bool idle() const noexcept { return pending_.empty() && !join_; }
  std::optional<TimePoint> next_deadline() const {
    return earliest([](const Pending& pending) {
      return pending.expiry_announced ? std::nullopt : pending.submission.deadline;
    });
  }
  std::optional<TimePoint> oldest_announcement() const {
    return earliest([](const Pending& pending) { return pending.announced; });
  }

  /// Removes and returns everything undecided, in the order of submission.
  std::vector<Submission> drain();

  std::vector<std::string> pending_names() const;

  bool announced_shutdown() const noexcept { return shutdown_announced_; }
  const Counters& counters() const noexcept { return counters_; }

 private:
  struct Pending {
    Submission submission;
    std::int64_t slot = -1;  ///< announced by this slot
    bool expiry_announced = false;
    std::optional<TimePoint> announced = {};
  };

  template <typename TimeOf>
  std::optional<TimePoint> earliest(TimeOf time_of) const {
    std::optional<TimePoint> first;
    for (const auto& [key, pending] : pending_) first = earlier(first, time_of(pending));
    return first;
  }
  void announce_one(Pending& pending, ReadyMessage& message);
  Submission take(const std::string& key);
  void put_back(Submission submission);
  void apply_all(const DecisionMessage& decision, AppliedDecision& applied);
  void apply_response(const Response& response, AppliedDecision& applied);
  void forget_slot(std::uint32_t slot);

  ResponseCache& cache_;
  EventLog* const events_;
  std::uint64_t decisions_seen_ = 0;
  std::int64_t announced_ns_ = 0;  ///< time of the last announcement that the decision answers
  bool shutdown_announced_ = false;
  std::optional<Submission> join_;  ///< this rank has joined
  bool join_announced_ = false;
  bool after_wait_ = false;  ///< Submission::after_wait of any in unannounced_
  BitVector absent_;         ///< slots to which this rank did not contribute the last time
  std::unordered_map<OpKey, Pending, OpKeyHash, OpKeyEqual> pending_;
  std::vector<Pending*> unannounced_;  ///< of pending_, in order of submission
  Counters counters_;
};

}  // namespace ronde

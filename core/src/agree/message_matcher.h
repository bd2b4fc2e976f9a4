// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/src/agree/late_refusals.h"
#include "core/src/agree/messages.h"
#include "core/src/agree/stalls.h"
#include "core/src/base/monotonic_clock.h"

namespace ronde {

/// Returns the problem of an operation that all ranks agree on, if it has one.
using ValidateRequest = std::function<Problem(const OpSpec&)>;

/// Rank 0's side of messages: finds the recv of each send. Pure bookkeeping.
///
/// Note [Matching of messages]
/// A message is agreed on as soon as both of its ranks have announced it, and its two responses go
/// into the next decision, among those of the collectives. So each rank has its messages and
/// collectives in the order of decisions, and the earliest operation that is not over anywhere can
/// always get on: there is no circle of ranks in which each waits for the next.
///
/// A send takes the earliest recv that fits, one that names the sender or one from any rank; a recv
/// takes the earliest send that fits. A rank's announcements come in the order of its calls, so
/// that messages of one tag between two ranks do not overtake each other.
///
/// Thread-safety: none; owned by whoever runs the loop of rank 0.
class MessageMatcher {
 public:
  /// `members`: the ranks of the group that are in the set, in its order. All other ranks here are
  /// numbered within the set.
  MessageMatcher(const std::vector<int>& members, ValidateRequest validate);

  /// Adds a send or recv of `rank`. Throws ronde::Error on an invalid one.
  void add(int rank, const std::string& key, const SpecPtr& spec, TimePoint now);

  /// Refuses `rank`'s message, whose timeout has passed, unless it has been matched meanwhile.
  void expire(int rank, const std::string& key, TimePoint now);

  /// Refuses every message that waits for its counterpart.
  void refuse_all(const std::string& text);

  /// Removes and returns the messages that were matched or refused since the last call, in order.
  std::vector<Response> take() { return std::exchange(responses_, {}); }

  void add_waiting(std::vector<WaitingOperation>& operations) const;

  bool idle() const noexcept { return queues_.empty(); }

 private:
  struct Waiting {
    std::string key;
    int rank = 0;
    SpecPtr spec;
    TimePoint since;
  };
  /// The rank that receives, and the tag.
  using Channel = std::pair<int, std::int64_t>;
  /// Sends and recvs without a counterpart, in the order of announcements; no queue is empty.
  using Queues = std::map<Channel, std::list<Waiting>>;

  void remove(Queues::iterator queue, std::list<Waiting>::iterator waiting);
  void match(const Waiting& send, const Waiting& receive);
  Problem refusal(const Waiting& send, const Waiting& receive) const;
  void answer(const Waiting& waiting, int peer, Refusal error);
  /// Returns the ranks that may be its counterpart.
  std::vector<int> counterparts(const Waiting& waiting) const;
  std::string name_of(int rank) const;

  const std::vector<int> members_;
  const int size_;
  const ValidateRequest validate_;
  Queues queues_;
  std::vector<Response> responses_;
};

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
// A rank that sees a failure asks rank 0, whose answer is the resolution. Rank 0 waits for a moment
// where the failure may be the consequence of a death that is about to be noticed. Where an
// operation takes too long it calls the roll: a rank that is stopped does not answer. Each rank
// sends the resolution to its children.
#include "core/src/group/failure_resolver.h"

#include <chrono>
#include <numeric>
#include <vector>

#include "core/src/base/monotonic_clock.h"
#include "core/src/base/rank_list.h"
#include "core/src/base/text.h"

namespace ronde {
namespace {

using Clock = MonotonicClock;

/// A failed backend is often the first sign of a dead peer: how long rank 0 waits for the death to
/// be noticed before it blames the rank that reported.
constexpr std::chrono::milliseconds kGrace{300};
/// How long ranks may take to answer the roll call.
constexpr std::chrono::seconds kRollCallTime{1};
/// How long a rank waits for rank 0's resolution, for each rank on the way there.
constexpr std::chrono::seconds kVerdictTime{3};

}  // namespace

FailureMessage FailureResolver::resolve_failure(const GroupFailure& seen, bool leaves) noexcept {
  if (tree_.size() == 1 || !tree_.is_open()) return seen.failure;
  FailureMessage resolution = seen.failure;
  try {
    if (!seen.is_resolved) {
      if (tree_.is_arbiter()) {
        resolution = resolution.overdue ? call_roll(resolution) : resolve_as_rank_zero(resolution);
      } else if (leaves) {
        tree_.send_up(resolution);
      } else {
        resolution = ask_rank_zero(resolution);
      }
    }
    resolution.certain = true;
    resolution.in_order = false;
    resolution.overdue = false;
    tree_.send_down(resolution);
    // A parent that was only stopped, and wakes up, must not take the end of this rank for a loss.
    if (!tree_.is_arbiter() && resolution.rank == tree_.parent()) tree_.send_up(resolution);
    return resolution;
  } catch (...) {
    log_.warning("the other ranks could not be informed of the failure: " + exception_text());
    return seen.failure;
  }
}

FailureMessage FailureResolver::loss_of(const Incoming& incoming) const {
  return {incoming.peer, rank_name(incoming.peer) + " was lost: " + incoming.bytes + pending_};
}

/// Returns the loss of a peer, or the failure that it reports, if that is what came.
std::optional<FailureMessage> FailureResolver::failure_in(const Incoming& incoming) const {
  if (incoming.kind == Incoming::Kind::PeerLost) return loss_of(incoming);
  if (incoming.kind != Incoming::Kind::Message) return std::nullopt;
  const Message message = decode(incoming.bytes);
  const auto* failure = std::get_if<FailureMessage>(&message);
  return failure != nullptr ? std::optional(*failure) : std::nullopt;
}

FailureMessage FailureResolver::resolve_as_rank_zero(FailureMessage seen) {
  const auto deadline = Clock::now() + kGrace;
  while (!seen.certain && Clock::now() < deadline) {
    const auto failure = failure_in(tree_.transport().receive(deadline));
    if (failure && failure->certain) seen = *failure;
  }
  return seen;
}

FailureMessage FailureResolver::call_roll(FailureMessage seen) {
  tree_.send_down(seen);
  std::vector<int> silent(static_cast<std::size_t>(tree_.size() - 1));
  std::iota(silent.begin(), silent.end(), 1);
  std::erase(silent, seen.rank);
  const auto deadline = Clock::now() + kRollCallTime;
  while (!silent.empty() && Clock::now() < deadline) {
    const auto failure = failure_in(tree_.transport().receive(deadline));
    if (failure && failure->certain) return *failure;
    if (failure && failure->overdue) std::erase(silent, failure->rank);
  }
  if (silent.empty()) {
    seen.text += ", although all ranks answer";
    return seen;
  }
  seen.rank = silent.front();
  seen.text += ": " + format_ranks(silent) +
               (silent.size() == 1 ? " does not answer; see whether it is stopped or hangs"
                                   : " do not answer; see whether they are stopped or hang");
  return seen;
}

void FailureResolver::answer_roll_call(FailureMessage failure) const {
  tree_.send_down(failure);
  failure.rank = tree_.rank();
  tree_.send_up(failure);
}

/// A leader keeps forwarding failures: the cause may be below it.
FailureMessage FailureResolver::ask_rank_zero(const FailureMessage& seen) {
  tree_.send_up(seen);
  if (seen.overdue) answer_roll_call(seen);
  const auto deadline = Clock::now() + tree_.depth() * kVerdictTime;
  while (Clock::now() < deadline) {
    const Incoming incoming = tree_.transport().receive(deadline);
    const bool from_above = incoming.peer == tree_.parent();
    const auto failure = failure_in(incoming);
    if (!from_above) {
      if (failure) tree_.send_up(*failure);
    } else if (!failure) {
      // All ranks had finished: rank 0 ends, and does not answer.
      const bool is_message = incoming.kind == Incoming::Kind::Message;
      if (is_message && std::holds_alternative<FinishedMessage>(decode(incoming.bytes)))
        return seen;
    } else if (failure->overdue) {
      answer_roll_call(*failure);
    } else if (!failure->in_order) {  // a departure that was on its way is not the answer
      return *failure;
    }
  }
  if (!seen.overdue) return seen;
  return {tree_.parent(), seen.text + ": " + rank_name(tree_.parent()) +
                              " does not answer; see whether it is stopped or hangs"};
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
// A rank that sees a failure asks rank 0, and takes its answer for the resolution. Rank 0 waits for
// a moment where the failure may only follow from a death, as the death itself is about to show.
// Each rank passes the resolution to its children.
#include "core/src/group/failure_resolver.h"

#include <chrono>

#include "core/src/base/exception_text.h"
#include "core/src/base/rank_list.h"

namespace ronde {
namespace {

using Clock = std::chrono::steady_clock;

/// A failed backend is often the first sign of a dead peer: rank 0 waits so long for the death
/// itself to show before it blames the rank that reported.
constexpr std::chrono::milliseconds kGrace{300};
/// How long a rank waits for rank 0's resolution.
constexpr std::chrono::seconds kVerdictTime{3};

}  // namespace

FailureMessage FailureResolver::resolve_failure(const GroupFailure& seen, bool leaves) noexcept {
  try {
    return resolve(seen, leaves);
  } catch (...) {
    log_.warning("the other ranks could not be told of the failure: " + exception_text());
    return seen.failure;
  }
}

FailureMessage FailureResolver::resolve(const GroupFailure& seen, bool leaves) {
  if (tree_.size() == 1 || !tree_.is_open()) return seen.failure;
  FailureMessage resolution = seen.failure;
  if (!seen.is_resolved) {
    if (tree_.is_arbiter()) {
      resolution = resolve_as_rank_zero(resolution);
    } else if (leaves) {
      tree_.send_up(resolution);
    } else {
      resolution = ask_rank_zero(resolution);
    }
  }
  resolution.certain = true;
  resolution.in_order = false;
  tree_.send_down(resolution);
  return resolution;
}

FailureMessage FailureResolver::loss_of(const Incoming& incoming) const {
  return {incoming.peer, rank_name(incoming.peer) + " was lost: " + incoming.bytes + pending_};
}

FailureMessage FailureResolver::resolve_as_rank_zero(FailureMessage seen) {
  const auto deadline = Clock::now() + kGrace;
  while (!seen.certain && Clock::now() < deadline) {
    const Incoming incoming = tree_.transport().receive(deadline);
    if (incoming.kind == Incoming::Kind::PeerLost) {
      seen = loss_of(incoming);
    } else if (incoming.kind == Incoming::Kind::Message) {
      const Message message = decode(incoming.bytes);
      const auto* failure = std::get_if<FailureMessage>(&message);
      if (failure != nullptr && failure->certain) seen = *failure;
    }
  }
  return seen;
}

/// The leader of a host keeps forwarding failures: the cause may be below it.
FailureMessage FailureResolver::ask_rank_zero(const FailureMessage& seen) {
  tree_.send_up(seen);
  const auto deadline = Clock::now() + kVerdictTime;
  while (Clock::now() < deadline) {
    const Incoming incoming = tree_.transport().receive(deadline);
    const bool from_above = incoming.peer == tree_.parent();
    if (incoming.kind == Incoming::Kind::PeerLost) {
      if (from_above) return loss_of(incoming);
      tree_.send_up(loss_of(incoming));
    }
    if (incoming.kind != Incoming::Kind::Message) continue;
    const Message message = decode(incoming.bytes);
    const auto* failure = std::get_if<FailureMessage>(&message);
    // A departure may have been on its way; it is not the answer.
    if (failure == nullptr || (from_above && failure->in_order)) continue;
    if (from_above) return *failure;
    tree_.send_up(*failure);
  }
  return seen;
}

}  // namespace ronde

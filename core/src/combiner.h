// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include "messages.h"

namespace ronde {

/// The side of a host's leader in negotiation: what the ranks of its host are ready for goes on to
/// rank 0 in one message a cycle. Pure bookkeeping: no I/O.
///
/// Thread-safety: none; owned by the coordinator thread of the leader.
class Combiner {
 public:
  /// Takes in the message of a rank of this host.
  void add(int rank, ReadyMessage message) { held_.parts.push_back({{rank}, std::move(message)}); }

  /// What rank 0 is to be told now, if anything.
  std::optional<HostReadyMessage> take() {
    if (held_.parts.empty()) return std::nullopt;
    return std::exchange(held_, {});
  }

 private:
  HostReadyMessage held_;
};

}  // namespace ronde

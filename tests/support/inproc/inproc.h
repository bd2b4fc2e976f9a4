// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/backend.h"
#include "ronde/plugin/board.h"
#include "ronde/plugin/transport.h"

namespace ronde::inproc {

class Hub;
class SetExchanges;
class SharedBoard;

/// A group of ranks that are threads of this process: each makes a Runtime of its transport and of
/// the one backend, which wants its data packed and works across the hosts that a test pretends.
///
/// Thread-safety: every member may be called from any thread. The group may be destroyed before its
/// transports and backends.
class Group {
 public:
  /// All ranks on one host.
  explicit Group(int size);

  /// As if the ranks ran on these hosts (any numbers, one a rank), with a control plane as deep as
  /// this many leaders below one make it.
  explicit Group(const std::vector<int>& host_of, int most_leaders_below = kMostLeadersBelow);

  std::function<std::unique_ptr<Transport>()> transport(int rank) const;
  BackendFactory backend_factory() const;

  /// The memory that the ranks share as if they were processes of one host. Of no use to ranks that
  /// were given several hosts.
  MakeBoard board() const;

  /// What the others see when a process dies: the transport of `rank` falls silent and they are
  /// told of the loss. Its own calls do nothing from then on.
  void kill(int rank);

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<SetExchanges> exchanges_;
  std::shared_ptr<SharedBoard> board_;
};

}  // namespace ronde::inproc

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/socket/connection.h"
#include "backends/socket/launched/launch.h"
#include "backends/socket/start.h"
#include "ronde/error.h"
#include "ronde/plugin/transport.h"

/// The transport of ranks that torchrun, Slurm or the like started, for programs that put a Runtime
/// together.
namespace ronde {

struct LaunchedOptions : NetworkOptions {
  Launch launch = {};
  /// Logs what the user should know although the start continues. May be null.
  std::function<void(const std::string&)> warn = nullptr;
};

/// Makes the transport: rank 0 listens at the launch's port until all others have connected, on the
/// calling thread. Throws UsageError if variables are invalid, and as net::connect_ranks(). Throws
/// GroupError that names a missing, lost or silent rank; rank 0 if the port is taken; or this rank
/// if rank 0 refuses it (another size or key, a rank that was given twice) or cannot be found by
/// name.
std::function<std::unique_ptr<Transport>()> launched_transport_factory(LaunchedOptions options);

}  // namespace ronde

namespace ronde::net {

/// Connections between rank 0 and every other rank, over which the ranks exchange what they need to
/// build the tree. They end with the start.
class Star {
 public:
  /// `neighbours`: on rank 0, all others; on any other rank, rank 0.
  Star(int rank, int size, std::vector<Peer> neighbours, Clock::time_point deadline);

  /// Implements Exchange: rank 0 collects the blobs and sends all of them to every rank. Throws
  /// GroupError that names a rank that is lost or silent, the same on all ranks.
  std::vector<std::string> exchange(std::string_view blob);

  /// Called by rank 0: has the others throw this error. Does not wait.
  void broadcast(const GroupError& error);

 private:
  std::vector<std::string> collect(std::string_view blob);
  void deliver(const std::string& message);
  std::vector<std::string> ask(std::string_view blob);
  std::vector<std::string> read_answer(const std::string& message) const;
  [[noreturn]] void fail(int rank, const std::string& text);

  const int rank_;
  const int size_;
  const Clock::time_point deadline_;
  std::map<int, Connection> connections_;  ///< by rank
  std::deque<std::string> answers_;        ///< unread messages of rank 0
};

}  // namespace ronde::net

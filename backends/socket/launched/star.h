// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "backends/socket/connection.h"
#include "backends/socket/rendezvous.h"
#include "ronde/error.h"

namespace ronde::net {

/// Connections between rank 0 and every other one, over which the ranks exchange what they need to
/// build the tree. It ends with the start.
class Star {
 public:
  /// `neighbours`: all others for rank 0, rank 0 for any other.
  Star(int rank, int size, std::vector<Peer> neighbours, Clock::time_point deadline);

  /// Does what Exchange says: rank 0 collects the blobs and sends all of them to everybody. Throws
  /// GroupError that names a rank that is lost or silent, the same on all ranks.
  std::vector<std::string> exchange(std::string_view blob);

  /// By rank 0: the others throw this error. Does not wait.
  void spread(const GroupError& error);

 private:
  std::vector<std::string> collect(std::string_view blob);
  void deliver(const std::string& message);
  std::vector<std::string> ask(std::string_view blob);
  std::vector<std::string> read_answer(const std::string& message) const;
  [[noreturn]] void fail(int rank, const std::string& text);

  const int rank_;
  const int size_;
  const Clock::time_point begun_ = Clock::now();
  const Clock::time_point deadline_;
  std::map<int, Connection> connections_;  ///< by rank
  std::deque<std::string> answers_;        ///< of rank 0, not looked at yet
};

}  // namespace ronde::net

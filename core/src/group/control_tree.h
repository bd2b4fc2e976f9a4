// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"
#include "ronde/plugin/transport.h"
#include "ronde/topology.h"

namespace ronde {

/// This rank's place in the tree of Topology, and its connections to its neighbours there.
///
/// Note [Over the tree]
/// Ranks communicate with rank 0, the arbiter, over the tree. A message from above is meant for
/// all: every rank forwards it to its children before it applies it. A leader forwards its
/// children's messages; its Combiner merges the announcements first. A failure is not forwarded but
/// resolved (FailureResolver), and a rank that has resolved it sends the resolution to its
/// children, which so receive it even if rank 0 is lost.
///
/// Thread-safety: none, except for transport() (see Transport); topology() and what follows from it
/// are constant once open() has returned.
class ControlTree {
 public:
  void open(std::unique_ptr<Transport> transport) {
    transport_ = std::move(transport);
    topology_ = transport_->topology();
    parent_ = topology_.parent();
    children_ = topology_.children();
    depth_ = topology_.depth_of(topology_.rank);
  }
  std::unique_ptr<Transport> release() noexcept { return std::move(transport_); }
  bool is_open() const noexcept { return transport_ != nullptr; }

  Transport& transport() const noexcept { return *transport_; }
  const Topology& topology() const noexcept { return topology_; }
  int rank() const noexcept { return topology_.rank; }
  int size() const noexcept { return topology_.size; }
  int parent() const noexcept { return parent_; }  ///< -1 on rank 0
  const std::vector<int>& children() const noexcept { return children_; }
  bool is_arbiter() const noexcept { return topology_.rank == 0; }
  /// Returns this rank's distance from rank 0 in the tree.
  int depth() const noexcept { return depth_; }

  void send_up(const Message& message) const { send_up(encode(message)); }
  void send_up(std::string_view bytes) const { transport_->send(parent_, bytes); }
  void send_down(const Message& message) const {
    if (!children_.empty()) send_down(encode(message));
  }
  void send_down(std::string_view bytes) const { send_to(children_, bytes); }
  void send_to(const std::vector<int>& children, std::string_view bytes) const {
    for (const int child : children) transport_->send(child, bytes);
  }

  bool exists(int rank) const noexcept { return rank >= 0 && rank < topology_.size; }
  /// Throws Error unless `peer`, a child, may send messages of `rank`: a rank sends its own, and
  /// those of the ranks below it.
  void expect_below(int peer, int rank) const {
    if (exists(rank) && topology_.is_at_or_below(rank, peer)) return;
    throw Error("it sends for " + rank_name(rank) + ", which is not below it");
  }

 private:
  std::unique_ptr<Transport> transport_;
  Topology topology_;
  int parent_ = -1;
  int depth_ = 0;
  std::vector<int> children_;
};

inline std::string nonsense_of(int peer, const Error& error) {
  return rank_name(peer) + " sent an invalid message: " + error.what();
}

}  // namespace ronde

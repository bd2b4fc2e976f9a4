// SPDX-License-Identifier: Apache-2.0
#include "core/src/group/control_tree.h"

#include <utility>

#include "core/src/base/rank_list.h"

namespace ronde {

void ControlTree::open(std::unique_ptr<Transport> transport) {
  transport_ = std::move(transport);
  topology_ = transport_->topology();
  parent_ = topology_.parent();
  children_ = topology_.children();
}

void ControlTree::send_down(const Message& message) const {
  if (!children_.empty()) send_down(encode(message));
}

void ControlTree::send_to(const std::vector<int>& children, std::string_view bytes) const {
  for (const int child : children) transport_->send(child, bytes);
}

void ControlTree::expect_below(int peer, int rank) const {
  if (exists(rank) && (rank == peer || topology_.parent_of(rank) == peer)) return;
  throw Error("it speaks for " + rank_name(rank) + ", which is not below it");
}

std::string nonsense_of(int peer, const Error& error) {
  return rank_name(peer) + " sent what makes no sense: " + error.what();
}

}  // namespace ronde

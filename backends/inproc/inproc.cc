// SPDX-License-Identifier: Apache-2.0
#include "backends/inproc/inproc.h"

#include "backends/inproc/exchange.h"
#include "backends/inproc/hub.h"
#include "backends/inproc/shared_board.h"

namespace ronde::inproc {

Group::Group(int size) : Group(std::vector<int>(static_cast<std::size_t>(size), 0)) {}

Group::Group(const std::vector<int>& host_of)
    : hub_(std::make_shared<Hub>(host_of)),
      exchange_(std::make_shared<Exchange>(static_cast<int>(host_of.size()))),
      board_(std::make_shared<SharedBoard>(hub_)) {}

std::function<std::unique_ptr<Transport>()> Group::transport(int rank) const {
  return [hub = hub_, rank] { return make_transport(hub, rank); };
}

BackendFactory Group::backend_factory() const {
  BackendFactory factory;
  factory.create = [exchange = exchange_](BackendContext& context) {
    return make_backend(exchange, context.topology->rank);
  };
  return factory;
}

MakeBoard Group::board() const {
  return
      [board = board_](BoardContext& context) { return make_board(board, context.topology->rank); };
}

void Group::kill(int rank) {
  hub_->leave(rank, "it was killed");
}

}  // namespace ronde::inproc

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc/inproc.h"

#include "tests/support/inproc/exchange.h"
#include "tests/support/inproc/hub.h"
#include "tests/support/inproc/set_exchanges.h"
#include "tests/support/inproc/shared_board.h"

namespace ronde::inproc {

Group::Group(int size) : Group(std::vector<int>(static_cast<std::size_t>(size), 0)) {}

Group::Group(const std::vector<int>& host_of)
    : hub_(std::make_shared<Hub>(host_of)),
      exchanges_(std::make_shared<SetExchanges>()),
      board_(std::make_shared<SharedBoard>(hub_)) {}

std::function<std::unique_ptr<Transport>()> Group::transport(int rank) const {
  return [hub = hub_, rank] { return make_transport(hub, rank); };
}

BackendFactory Group::backend_factory() const {
  BackendFactory factory;
  factory.serves_sets = true;
  factory.create = [exchanges = exchanges_](BackendContext& context) {
    const Topology& topology = *context.topology;
    return make_backend(exchanges->of_set(context.set, topology.size), topology.rank);
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

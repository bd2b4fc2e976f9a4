// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/ucx/ucx.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/thread_exchange.h"

namespace ronde::test {

/// Makes the fabric of a rank, each on a host of its own. `exchange`: see BackendContext.
template <typename ExchangeBlobs>
std::unique_ptr<Fabric> make_ucx_fabric(int rank, int size, ExchangeBlobs exchange) {
  std::vector<int> host_of;
  for (int host = 0; host < size; ++host) host_of.push_back(host);
  const Topology topology = make_topology(rank, host_of);
  BackendContext context;
  context.topology = &topology;
  context.exchange = exchange;
  return ucx_fabric_maker({})(context);
}

/// Makes the fabrics of all ranks.
inline std::vector<std::unique_ptr<Fabric>> make_ucx_fabrics(int size) {
  std::vector<std::unique_ptr<Fabric>> fabrics(static_cast<std::size_t>(size));
  ThreadExchange exchange(size);
  run_ranks(size, [&](int rank) {
    fabrics[static_cast<std::size_t>(rank)] = make_ucx_fabric(rank, size, exchange.of(rank));
  });
  return fabrics;
}

}  // namespace ronde::test

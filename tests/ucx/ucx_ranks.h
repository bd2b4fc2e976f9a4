// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backends/ucx/ucx.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

/// BackendContext::exchange between threads, once.
///
/// Thread-safety: any.
class BlobExchange {
 public:
  explicit BlobExchange(int size) : blobs_(static_cast<std::size_t>(size)) {}

  std::vector<std::string> exchange(int rank, std::string_view blob) {
    std::unique_lock lock(mutex_);
    blobs_[static_cast<std::size_t>(rank)] = blob;
    ++here_;
    all_here_.notify_all();
    all_here_.wait(lock, [this] { return here_ == blobs_.size(); });
    return blobs_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::string> blobs_;
  std::size_t here_ = 0;
};

/// The fabric of a rank, each on a host of its own. `exchange` is as in BackendContext.
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

/// Those of all ranks.
inline std::vector<std::unique_ptr<Fabric>> make_ucx_fabrics(int size) {
  std::vector<std::unique_ptr<Fabric>> fabrics(static_cast<std::size_t>(size));
  BlobExchange exchange(size);
  run_ranks(size, [&](int rank) {
    fabrics[static_cast<std::size_t>(rank)] = make_ucx_fabric(
        rank, size, [&](std::string_view blob) { return exchange.exchange(rank, blob); });
  });
  return fabrics;
}

}  // namespace ronde::test

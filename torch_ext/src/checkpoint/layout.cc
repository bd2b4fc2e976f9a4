// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/layout.h"

#include <algorithm>
#include <numeric>

namespace ronde::detail {

int CheckpointLayout::copier(int of) const {
  if (!replicated) return -1;
  const int owner = writer(of);
  std::vector<std::vector<int>> hosts;  // in the order of their numbers
  const int last = *std::max_element(host_of.begin(), host_of.end());
  hosts.resize(static_cast<std::size_t>(last) + 1);
  for (int r = 0; r < size; ++r) {
    hosts[static_cast<std::size_t>(host_of[static_cast<std::size_t>(r)])].push_back(r);
  }
  const auto host = static_cast<std::size_t>(host_of[static_cast<std::size_t>(owner)]);
  const std::vector<int>& own = hosts[host];
  const auto place =
      static_cast<std::size_t>(std::find(own.begin(), own.end(), owner) - own.begin());
  for (std::size_t i = 1; i < hosts.size(); ++i) {
    const std::vector<int>& next = hosts[(host + i) % hosts.size()];
    if (!next.empty()) return next[place % next.size()];
  }
  return -1;
}

bool CheckpointLayout::writes() const {
  for (int of = 0; of < size; ++of) {
    if (writer(of) == rank || copier(of) == rank) return true;
  }
  return false;
}

std::vector<int> divide_among_ranks(const std::vector<std::uint64_t>& bytes, int ranks) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int> owners(bytes.size());
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(ranks));
  for (const std::size_t item : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += bytes[item];
    owners[item] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

}  // namespace ronde::detail

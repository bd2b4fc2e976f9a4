// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/in_order.h"

#include <algorithm>
#include <span>

namespace ronde::nccl {
namespace {

constexpr std::size_t kAlignment = 16;

cuda::DevicePointer address_of(const std::byte* memory) {
  return reinterpret_cast<cuda::DevicePointer>(memory);
}

}  // namespace

std::size_t share_of(std::size_t elements, std::size_t ranks, std::size_t width) {
  const std::size_t unit = kAlignment / width;
  const std::size_t share = (elements + ranks - 1) / ranks;
  return (share + unit - 1) / unit * unit;
}

Shares lay_out(std::byte* fusion, std::size_t share, std::size_t ranks, std::size_t width) {
  const std::size_t bytes = share * width;
  return {.packed = fusion, .received = fusion + ranks * bytes, .elements = share, .bytes = bytes};
}

std::size_t most_of_share(std::size_t fusion_bytes, std::size_t ranks, std::size_t width) {
  return fusion_bytes / (2 * ranks * kAlignment) * kAlignment / width;
}

void exchange_shares(const Channel& channel, const Shares& shares, std::size_t rank,
                     std::size_t ranks, const std::string& doing) {
  const NcclApi& api = channel.communicator->api();
  CallGroup group(channel, doing);
  for (std::size_t i = 1; i < ranks; ++i) {
    // Each begins with another one.
    const std::size_t to = (rank + i) % ranks;
    const std::size_t from = (rank + ranks - i) % ranks;
    channel.call(doing, api.send, shares.packed_of(to), shares.bytes, kUint8, static_cast<int>(to));
    channel.call(doing, api.recv, shares.received_of(from), shares.bytes, kUint8,
                 static_cast<int>(from));
  }
  group.end();
}

void reduce_in_order(cuda::Workbench& bench, const Shares& shares, std::size_t rank,
                     std::size_t ranks, const ReductionPlan& plan, std::size_t most_inputs) {
  std::vector<cuda::DevicePointer> left;
  for (std::size_t from = 0; from < ranks; ++from) {
    left.push_back(address_of(from == rank ? shares.packed_of(rank) : shares.received_of(from)));
  }
  Reduction reduction{.dtype = plan.travel, .op = plan.op, .prescale = plan.prescale};
  while (!left.empty()) {
    const std::size_t count = std::min(left.size(), most_inputs);
    const bool is_last = count == left.size();
    if (is_last) reduction.final = plan.final;
    // This rank's own elements may have to wait for their round: the result goes to the place of
    // the first input meanwhile.
    const cuda::DevicePointer output = is_last ? address_of(shares.received) : left.front();
    bench.kernels().reduce(bench.stream(), output, std::span(left).first(count), shares.elements,
                           reduction);
    left.erase(left.begin() + (is_last ? 0 : 1), left.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

}  // namespace ronde::nccl

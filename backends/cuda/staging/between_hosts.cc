// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/staging/between_hosts.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "backends/hierarchical/final_steps.h"

namespace ronde::cuda {
namespace {

constexpr std::size_t kPartAlignment = 64;  ///< of parts, in bytes: cache lines

}  // namespace

Reduction split_over_hosts(WireFormat& wire, const AllreduceCall& call, std::size_t largest_host) {
  // Without a wire type, a sum is rounded to its half type once, at the end.
  if (is_half(wire.dtype) && !call.wire_dtype) wire = in_steps(wire);
  const hierarchical::FinalSteps steps =
      hierarchical::final_steps(call.op, call.wire_dtype.has_value(), call.final, largest_host);
  wire.final = steps.within_host;
  return {.dtype = wire.dtype, .op = wire.op, .final = steps.over_hosts};
}

bool has_two_levels(const Topology& topology) {
  return topology.hosts() > 1 && topology.local_size > 1 && topology.is_homogeneous();
}

BetweenHosts::BetweenHosts(HostPipe& pipe, Backend& host, const Topology& topology)
    : pipe_(pipe), host_(host) {
  const auto hosts = static_cast<std::size_t>(topology.hosts());
  std::vector<int> seen(hosts, 0);
  for (std::size_t rank = 0; rank < topology.host_of.size(); ++rank) {
    const auto at = static_cast<std::size_t>(topology.host_of[rank]);
    if (seen[at]++ != topology.local_rank) continue;
    if (static_cast<int>(rank) == topology.rank) own_ = owners_.size();
    owners_.push_back({rank, at});
  }
  parts_.resize(topology.host_of.size());
  own_parts_.resize(topology.host_of.size());
  inputs_.resize(hosts);
}

Steps BetweenHosts::reduce(DevicePointer share, std::size_t count, std::size_t longest,
                           Reduction over_hosts) {
  const std::size_t width = size_of(over_hosts.dtype);
  HostPipe::Passage passage{.memory = share, .bytes = count * width, .longest = longest * width};
  passage.work = [this, over_hosts](const HostPipe::Piece& piece) {
    return combine(piece, over_hosts);
  };
  Steps passing = pipe_.pass(std::move(passage));
  co_await passing;
  Steps draining = pipe_.drain();
  co_await draining;
}

std::size_t BetweenHosts::part_of(std::size_t owner, std::size_t count,
                                  std::size_t alignment) const noexcept {
  const std::size_t even = (count + owners_.size() - 1) / owners_.size();
  const std::size_t each = (even + alignment - 1) / alignment * alignment;
  const std::size_t begin = std::min(owner * each, count);
  return std::min(begin + each, count) - begin;
}

/// Note [Shares between hosts].
Steps BetweenHosts::combine(HostPipe::Piece piece, Reduction over_hosts) {
  const std::size_t width = size_of(over_hosts.dtype);
  const std::size_t count = piece.bytes / width;
  const std::size_t alignment = kPartAlignment / width;
  const std::size_t own = part_of(own_, count, alignment);
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    parts_[owners_[i].rank] = part_of(i, count, alignment);
    own_parts_[owners_[i].rank] = own;
  }
  incoming_.resize(owners_.size() * own * width);
  results_.resize(owners_.size() * own * width);
  AlltoallCall call{.input = piece.memory,
                    .output = incoming_.data(),
                    .send_counts = parts_,
                    .receive_counts = own_parts_,
                    .largest_count = part_of(0, piece.longest / width, alignment),
                    .dtype = over_hosts.dtype};
  const std::unique_ptr<Operation> sending = host_.alltoall(call);
  co_await until_finished(*sending);
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    inputs_[owners_[i].host] = incoming_.data() + i * own * width;
  }
  if (own > 0) {
    best_kernels().reduce(results_.data(), inputs_, own, over_hosts, Store::Regular);
  }
  // An alltoall needs a copy of the result for each owner.
  for (std::size_t i = 1; own > 0 && i < owners_.size(); ++i) {
    std::memcpy(results_.data() + i * own * width, results_.data(), own * width);
  }
  call.input = results_.data();
  call.output = piece.memory;
  std::swap(call.send_counts, call.receive_counts);
  const std::unique_ptr<Operation> returning = host_.alltoall(call);
  co_await until_finished(*returning);
}

}  // namespace ronde::cuda

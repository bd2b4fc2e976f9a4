// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "backends/cuda/staging/host_pipe.h"
#include "backends/gpu/kernels/wire_format.h"
#include "core/src/base/steps.h"
#include "ronde/backend.h"
#include "ronde/topology.h"

namespace ronde::cuda {

/// Splits a reduction over several hosts: `wire` becomes that within a host, and the one between
/// hosts is returned. Results have the bits of the CPU's hierarchical backend. `largest_host`:
/// the number of its ranks.
Reduction split_over_hosts(WireFormat& wire, const AllreduceCall& call, std::size_t largest_host);

/// Whether all of several hosts have the same number of ranks, two or more: only then a share of
/// the elements has an owner on every host.
bool has_two_levels(const Topology& topology);

/// Sums the hosts' sums of a share: its owners, one on each host, exchange it through host memory
/// by the CPU's backend.
///
/// Note [Shares between hosts]
/// A share goes through the host in pieces. The owners divide each piece: they send each other the
/// parts, each reduces its own part in the order of hosts, and they send each other the results.
/// Both exchanges are an alltoall of all ranks, in which a rank sends only to its fellow owners. So
/// no communicators are made, a share crosses between two hosts once in each direction, and all
/// ranks have the same bits, as one rank reduces each element.
///
/// Thread-safety: one thread at a time, one reduction at a time.
class BetweenHosts {
 public:
  /// `pipe`, `host`: outlive it. `topology`: has_two_levels().
  BetweenHosts(HostPipe& pipe, Backend& host, const Topology& topology);

  /// Replaces `count` elements on the GPU, this host's sum, by the sum of all hosts, once the
  /// resources's stream has run. All ranks call it alike. `longest`: elements of the largest share.
  Steps reduce(DevicePointer share, std::size_t count, std::size_t longest, Reduction over_hosts);

 private:
  struct Owner {
    std::size_t rank = 0;
    std::size_t host = 0;
  };

  Steps combine(HostPipe::Piece piece, Reduction over_hosts);
  /// How many of a share's `count` elements an owner finishes.
  std::size_t part_of(std::size_t owner, std::size_t count, std::size_t alignment) const noexcept;

  HostPipe& pipe_;
  Backend& host_;
  std::vector<Owner> owners_;           ///< of this rank's share, in rank order
  std::size_t own_ = 0;                 ///< index of this rank among them
  std::vector<std::size_t> parts_;      ///< by rank: elements of its part
  std::vector<std::size_t> own_parts_;  ///< by rank: elements of this rank's part, for its owners
  std::vector<std::byte> incoming_;
  std::vector<std::byte> results_;
  std::vector<const void*> inputs_;  ///< by host
};

}  // namespace ronde::cuda

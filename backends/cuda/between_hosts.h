// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "backends/cuda/host_pipe.h"
#include "backends/cuda/travel.h"
#include "core/src/base/steps.h"
#include "ronde/backend.h"
#include "ronde/topology.h"

namespace ronde::cuda {

/// Of a reduction over several hosts: `travel` becomes what is done within each, and what is done
/// between them is returned. The results have the bits that the hierarchical backend of the CPU
/// gives. `divisor`: of an average, over all ranks. `largest_host`: its ranks.
Reduction split_over_hosts(Travel& travel, const AllreduceCall& call, int divisor,
                           std::size_t largest_host);

/// Whether hosts have as many ranks each, and more than one: only then the ranks of a host divide
/// the elements among themselves, each share with an owner on every host.
bool has_two_levels(const Topology& topology);

/// The hosts' sums of a share become the sum of all hosts, by the owners of the share, one on each
/// host: through host memory, and by the backend of the CPU.
///
/// Note [Shares between hosts]
/// A share is taken through the host in pieces. Of each its owners send each other the parts that
/// they are to finish, reduce theirs in the order of hosts, and send each other the results; both
/// times by an alltoall of all ranks, in which a rank has nothing for any but its fellow owners. So
/// no communicators are made for it, a share crosses to another host once in either direction, and
/// all have the same bits, as one rank has finished each element.
///
/// Thread-safety: one thread at a time, one reduction at a time.
class BetweenHosts {
 public:
  /// `pipe`, `host`: outlive it. `topology`: has_two_levels().
  BetweenHosts(HostPipe& pipe, Backend& host, const Topology& topology);

  /// `count` elements at `share`, on the GPU, are the sum of this host; they become that of all
  /// once what is queued on the workbench's stream has run. `longest`: elements of the largest
  /// share, the same on all ranks, which all call this alike.
  Steps reduce(DevicePointer share, std::size_t count, std::size_t longest, Reduction over_hosts);

 private:
  /// The owners of this rank's share, in the order of ranks.
  struct Owner {
    std::size_t rank = 0;
    std::size_t host = 0;
  };
  struct Part {
    std::size_t begin = 0;
    std::size_t count = 0;
  };

  Steps combine(HostPipe::Piece piece, Reduction over_hosts);
  Part part_of(std::size_t owner, std::size_t count, std::size_t alignment) const noexcept;

  HostPipe& pipe_;
  Backend& host_;
  std::vector<Owner> owners_;
  std::size_t own_ = 0;                 ///< of the owners
  std::vector<std::size_t> parts_;      ///< elements by rank: what is sent to or comes from it
  std::vector<std::size_t> own_parts_;  ///< by rank: this rank's part, from or to its owners
  std::vector<std::byte> incoming_;
  std::vector<std::byte> results_;
  std::vector<const void*> inputs_;  ///< by host
};

}  // namespace ronde::cuda

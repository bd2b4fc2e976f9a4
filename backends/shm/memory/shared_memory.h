// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/shm/memory/in_step.h"
#include "core/src/base/shared_mapping.h"
#include "core/src/base/system.h"

namespace ronde::shm {

/// Memory that a process of this host offers, as plain bytes to send.
struct MemoryOffer {
  std::int64_t process = 0;
  std::int64_t descriptor = -1;  ///< of that process
  std::uint64_t device = 0;      ///< by which it is known again
  std::uint64_t inode = 0;       ///< likewise
  std::uint64_t bytes = 0;
};

/// A mapping of memory that the ranks of one host share. It has no name anywhere: it is gone with
/// the last process that maps it, however that ends.
using SharedMemory = SharedMapping;

/// Memory that is large and mostly untouched would make core dumps slow.
void leave_out_of_core_dumps(const SharedMemory& memory) noexcept;

/// Zeroed memory that other processes of this host may map while this object lives. The offer
/// reaches them in any way: for ranks that can no longer exchange blobs.
class OfferedMemory {
 public:
  /// Throws ronde::Error.
  explicit OfferedMemory(std::size_t bytes);
  MemoryOffer offer() const;

 private:
  UniqueFd fd_;
};

/// Maps it. Throws ronde::Error, as where the process is of another user or of another container.
SharedMemory map_offered(const MemoryOffer& offer);

// Every rank calls these, of all hosts, at the same time and, on a host, with equal arguments. If
// one rank fails, all throw the same GroupError, which names it. Ranks may be processes (also of
// different pid namespaces) or threads of one.

/// `bytes` of zeroed memory, common to the ranks of a host. No page is touched yet: who touches it
/// first has it on its NUMA node. `own`: as of SharedMapping, and each rank's own.
SharedMemory share_memory(const Meeting& meeting, std::size_t bytes, MappedRange own = {});

/// Gives `fd` to the other ranks of the host; returns theirs by local rank, with a duplicate of the
/// own one. `fd` stays the caller's.
std::vector<UniqueFd> share_descriptors(const Meeting& meeting, int fd);

}  // namespace ronde::shm

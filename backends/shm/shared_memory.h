// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backends/shm/in_step.h"
#include "backends/socket/unique_fd.h"

namespace ronde::shm {

/// A mapping of memory that the ranks of one host share. It has no name anywhere: it is gone with
/// the last process that maps it, however that ends.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::span<std::byte> bytes() const noexcept { return bytes_; }

  /// What is large and mostly never touched would only make them slow to read.
  void leave_out_of_core_dumps() noexcept;

 private:
  friend SharedMemory share_memory(const Meeting& meeting, std::size_t bytes);
  explicit SharedMemory(std::span<std::byte> bytes) noexcept : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

// Every rank calls these, of all hosts, at the same time and, on a host, with equal arguments. If
// one rank fails, all throw the same GroupError, which names it. Ranks may be processes (also of
// different pid namespaces) or threads of one.

/// `bytes` of zeroed memory, common to the ranks of a host. No page is touched yet: who touches it
/// first has it on its NUMA node.
SharedMemory share_memory(const Meeting& meeting, std::size_t bytes);

/// Gives `fd` to the other ranks of the host; returns theirs by local rank, with a duplicate of the
/// own one. `fd` stays the caller's.
std::vector<net::UniqueFd> share_descriptors(const Meeting& meeting, int fd);

}  // namespace ronde::shm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "core/src/base/caller.h"
#include "ronde/process_set.h"
#include "ronde/symmetric_heap.h"

namespace ronde::detail {

/// Memory of the symmetric heap, at the same offset on every rank; given back when it ends. Not
/// cleared.
class SymmetricBlock {
 public:
  SymmetricBlock(std::shared_ptr<SymmetricHeap> heap, std::size_t offset)
      : heap_(std::move(heap)), offset_(offset) {}
  ~SymmetricBlock() {
    if (fork_depth() == fork_depth_) heap_->release(offset_);  // Note [After fork]
  }
  SymmetricBlock(const SymmetricBlock&) = delete;
  SymmetricBlock& operator=(const SymmetricBlock&) = delete;

  std::byte* data() const noexcept { return heap_->own(offset_); }

 private:
  const std::shared_ptr<SymmetricHeap> heap_;
  const std::size_t offset_;
  const int fork_depth_ = fork_depth();
};

/// Collective, with the same arguments on every rank. Null, on all ranks, where the backend has no
/// symmetric heap or a rank has no room there. `name`: of the operations by which the ranks agree;
/// `timeout`: of each of them.
std::shared_ptr<SymmetricBlock> make_symmetric_block(const std::string& name, std::size_t bytes,
                                                     ProcessSet set,
                                                     std::chrono::nanoseconds timeout);

}  // namespace ronde::detail

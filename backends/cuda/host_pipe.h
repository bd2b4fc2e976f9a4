// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backends/cuda/workbench.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Takes memory of the GPU through page-locked memory of the host, in pieces: while one is copied
/// down, the host works on the one before, and the one before that is copied up, on a stream of its
/// own.
///
/// Thread-safety: one thread at a time, one passage at a time.
class HostPipe {
 public:
  /// `bench` outlives it. `up`: for what is copied to the GPU. `piece_bytes`: of a piece, a
  /// multiple of 16. `passed`: counts bytes.
  HostPipe(Workbench& bench, std::shared_ptr<Stream> up, std::size_t piece_bytes,
           std::atomic<std::uint64_t>& passed);

  /// A piece on the host.
  struct Piece {
    std::byte* memory = nullptr;
    std::size_t begin = 0;    ///< byte of the passage
    std::size_t bytes = 0;    ///< none where this rank has less than others
    std::size_t longest = 0;  ///< bytes of this piece on the rank that has most
  };
  struct Passage {
    DevicePointer memory = 0;
    std::size_t bytes = 0;
    /// Of the rank that has most: there are as many pieces on every rank.
    std::size_t longest = 0;
    bool is_copied_down = true;
    bool is_copied_up = true;
    /// What the host does with a piece, in place; the pieces come one by one, in their order.
    std::function<Steps(const Piece& piece)> work = {};
  };

  /// Ends once all is queued. What is queued on the workbench's stream afterwards runs behind it;
  /// settle() has to follow before the next passage.
  Steps pass(Passage passage);
  /// Ends once everything has been copied, and gives its memory back.
  Steps settle();

 private:
  struct Slot {
    PinnedBlock memory;
    Event down;  ///< its bytes have come from the GPU
    Event up;    ///< and are back there
    bool is_going_up = false;
  };

  void fetch(Slot& slot, const Passage& passage, const Piece& piece);
  void put_back(Slot& slot, const Passage& passage, const Piece& piece);
  void join_streams();

  Workbench& bench_;
  const std::shared_ptr<Stream> up_;
  const std::size_t piece_bytes_;
  std::atomic<std::uint64_t>& passed_;
  // Of the passage in progress: where that ends half-way, the GPU may still copy from and to them,
  // so they live as long as the rest.
  std::vector<Slot> slots_;
};

}  // namespace ronde::cuda

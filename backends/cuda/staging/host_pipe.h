// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backends/gpu/gpu_resources.h"
#include "core/src/base/steps.h"

namespace ronde::cuda {

/// Pipes memory of the GPU through page-locked host memory, in pieces: while one is copied down,
/// the host works on the previous one, and the one before that is copied up, on another stream.
///
/// Thread-safety: one thread at a time, one passage at a time.
class HostPipe {
 public:
  /// `bench` outlives it. `up`: the stream for copies to the GPU. `piece_bytes`: a multiple of 16.
  /// `passed`: counts bytes.
  HostPipe(GpuResources& resources, std::shared_ptr<Stream> up, std::size_t piece_bytes,
           std::atomic<std::uint64_t>& passed);

  /// A piece on the host.
  struct Piece {
    std::byte* memory = nullptr;
    std::size_t begin = 0;    ///< offset in the passage, in bytes
    std::size_t bytes = 0;    ///< 0 if this rank has fewer pieces than others
    std::size_t longest = 0;  ///< bytes of this piece on the rank that has most
  };
  struct Passage {
    DevicePointer memory = 0;
    std::size_t bytes = 0;
    std::size_t longest = 0;  ///< bytes of the rank that has most: all ranks have as many pieces
    bool is_copied_down = true;
    bool is_copied_up = true;
    /// The host's work on a piece, in place; called for one piece after the other.
    std::function<Steps(const Piece& piece)> work = {};
  };

  /// Ends once all is queued. Work queued on the resources' stream afterwards runs behind it.
  /// drain() must follow before the next passage.
  Steps pass(Passage passage);
  /// Ends once all copies have run, and gives their memory back.
  Steps drain();

 private:
  struct Slot {
    PinnedBlock memory;
    Event down;  ///< after the copy from the GPU
    Event up;    ///< after the copy to it
    bool is_going_up = false;
  };

  void fetch(Slot& slot, const Passage& passage, const Piece& piece);

  GpuResources& resources_;
  const std::shared_ptr<Stream> up_;
  const std::size_t piece_bytes_;
  std::atomic<std::uint64_t>& passed_;
  // Those of the passage in progress: if it is given up, the GPU may still access them.
  std::vector<Slot> slots_;
};

}  // namespace ronde::cuda

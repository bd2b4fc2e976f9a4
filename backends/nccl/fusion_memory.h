// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "backends/cuda/device_context.h"
#include "backends/nccl/communicator.h"

namespace ronde::nccl {

/// The fusion buffer of a channel where registrations are on: NCCL allocates it and knows it, so
/// that it reads and writes it without copies of its own. Where NCCL has windows it is a symmetric
/// one, at the same place in the window of each rank, for NCCL's symmetric kernels and reductions
/// in switches. The ranks' versions of NCCL are equal, so all have windows or none.
///
/// Thread-safety: the channel's thread; the destructor: any, once that has stopped.
class FusionMemory {
 public:
  /// Throws NcclError where the GPU has too little memory.
  FusionMemory(const BlockingCommunicator& communicator,
               std::shared_ptr<const cuda::DeviceContext> context, std::size_t bytes);
  /// Frees it. The registration has ended, by itself or with the communicator.
  ~FusionMemory();
  FusionMemory(const FusionMemory&) = delete;
  FusionMemory& operator=(const FusionMemory&) = delete;

  std::byte* begin() const noexcept { return static_cast<std::byte*>(memory_); }

  /// Registers it, and ends that before the communicator is closed; all ranks do together.
  /// @{
  void enter(const BlockingCommunicator& communicator);
  void leave(const BlockingCommunicator& communicator);
  /// @}

 private:
  const std::shared_ptr<const cuda::DeviceContext> context_;
  const std::shared_ptr<const NcclApi> api_;
  const std::size_t bytes_;
  void* memory_ = nullptr;
  Window window_ = nullptr;       ///< NCCL makes none where the GPUs do not reach each other
  void* registration_ = nullptr;  ///< where there is no window
};

}  // namespace ronde::nccl

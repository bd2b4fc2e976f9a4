// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backends/cuda/device_context.h"
#include "backends/cuda/stream.h"
#include "backends/cuda/workbench.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/issuing_thread.h"

namespace ronde::nccl {

/// A communicator, the stream that its work is queued on, and the thread that makes its calls.
///
/// Thread-safety: the functions: that thread.
struct Channel {
  std::shared_ptr<IssuingThread> thread;
  std::shared_ptr<cuda::Stream> stream;
  std::shared_ptr<BlockingCommunicator> communicator;

  /// Calls one of NCCL's functions that end with a communicator and a stream: those of this
  /// channel. Blocks as they do. Throws NcclError.
  template <typename... Arguments, typename... Given>
  void call(const std::string& doing, const vendor::Entry<Result, Arguments...>& function,
            Given... given) const {
    const cuda::Current current(stream->context());
    const BlockingCommunicator::Use use(*communicator, doing);
    communicator->call(doing, function, given..., use.handle(), stream->handle());
  }

  /// What `calls` makes, by call(), is issued together at its end.
  template <typename Calls>
  void call_together(const std::string& doing, const Calls& calls) const {
    const NcclApi& api = communicator->api();
    const BlockingCommunicator::Use use(*communicator, doing);
    communicator->call(doing, api.group_start);
    try {
      calls();
    } catch (...) {
      // The thread's next calls are not to be part of it.
      static_cast<void>(api.group_end());
      throw;
    }
    const cuda::Current current(stream->context());
    communicator->call(doing, api.group_end);
  }

  /// As BlockingCommunicator::close().
  void close() const {
    const cuda::Current current(stream->context());
    communicator->close();
  }
};

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

/// A channel, between all ranks with what collectives work in.
struct Lane {
  std::shared_ptr<cuda::Workbench> bench;  ///< null: of two ranks, for messages
  Channel channel;
  std::unique_ptr<FusionMemory> fusion_memory;  ///< none: that of the bench

  /// The fusion buffer, of Workbench::fusion_bytes(). Throws Error where there is too little
  /// memory.
  std::byte* fusion() const {
    if (fusion_memory) return fusion_memory->begin();
    return reinterpret_cast<std::byte*>(bench->fusion());
  }
};

}  // namespace ronde::nccl

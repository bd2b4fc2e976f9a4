// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backends/gpu/driver/device_context.h"
#include "backends/gpu/driver/stream.h"
#include "backends/gpu/gpu_resources.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/issuing_thread.h"

namespace ronde::nccl {

/// The fusion buffer of a channel with registrations: NCCL allocates and registers it, and so
/// accesses it without copies. With NCCL 2.27 it is a symmetric window, at the same offset on each
/// rank, for NCCL's symmetric kernels and reductions in switches. All ranks have the same version
/// of NCCL.
///
/// Thread-safety: the channel's thread; the destructor: any, once that has stopped.
class FusionMemory {
 public:
  /// Throws NcclError if the GPU has too little memory.
  FusionMemory(const BlockingCommunicator& communicator,
               std::shared_ptr<const cuda::DeviceContext> context, std::size_t bytes);
  /// Frees it. leave() or the end of the communicator must have ended its registration.
  ~FusionMemory();
  FusionMemory(const FusionMemory&) = delete;
  FusionMemory& operator=(const FusionMemory&) = delete;

  std::byte* begin() const noexcept { return static_cast<std::byte*>(memory_); }

  /// Registers it; all ranks call it together.
  void enter(const BlockingCommunicator& communicator);
  /// Ends the registration, before the communicator is closed; all ranks call it together.
  void leave(const BlockingCommunicator& communicator);

 private:
  const std::shared_ptr<const cuda::DeviceContext> context_;
  const std::shared_ptr<const NcclApi> api_;
  const std::size_t bytes_;
  void* memory_ = nullptr;
  Window window_ = nullptr;       ///< null if the GPUs do not reach each other
  void* registration_ = nullptr;  ///< if there is no window
};

/// A communicator with its stream, the thread that makes its calls, and the resources of
/// collectives.
///
/// Thread-safety: that thread calls the functions.
struct StreamChannel {
  std::shared_ptr<cuda::GpuResources> resources;  ///< null: two ranks exchange messages
  std::shared_ptr<IssuingThread> thread;
  std::shared_ptr<cuda::Stream> stream;
  std::shared_ptr<BlockingCommunicator> communicator;
  std::unique_ptr<FusionMemory> fusion_memory = {};  ///< null: the bench has the fusion buffer

  /// Calls a function of NCCL whose last parameters are a communicator and a stream. May block.
  /// Throws NcclError.
  template <typename... Arguments, typename... Given>
  void call(const std::string& doing, const vendor::Entry<Result, Arguments...>& function,
            Given... given) const {
    const cuda::Current current(stream->context());
    const BlockingCommunicator::Use use(*communicator, doing);
    communicator->call(doing, function, given..., use.handle(), stream->handle());
  }

  /// Issues the calls that `calls` makes by call() as one group.
  template <typename Calls>
  void call_together(const std::string& doing, const Calls& calls) const {
    const NcclApi& api = communicator->api();
    const BlockingCommunicator::Use use(*communicator, doing);
    communicator->call(doing, api.group_start);
    try {
      calls();
    } catch (...) {
      // The thread's next calls must not be part of the group.
      static_cast<void>(api.group_end());
      throw;
    }
    const cuda::Current current(stream->context());
    communicator->call(doing, api.group_end);
  }

  /// The fusion buffer, of GpuResources::fusion_bytes(). Throws Error if there is too little
  /// memory.
  std::byte* fusion() const {
    return fusion_memory ? fusion_memory->begin()
                         : reinterpret_cast<std::byte*>(resources->fusion());
  }
};

}  // namespace ronde::nccl

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "backends/cuda/registration_cache.h"
#include "backends/nccl/channel.h"

namespace ronde::nccl {

/// The fusion buffer of the channels of a stream. With registrations NCCL allocates it where it
/// can, and is told of it by each, so that it reads and writes it without copies of its own.
///
/// Thread-safety: one thread at a time.
class FusionMemory {
 public:
  /// `cache`: of registrations; outlives it; null: there are to be none, and the memory is that of
  /// the channel's workbench.
  explicit FusionMemory(cuda::RegistrationCache* cache) : cache_(cache) {}
  ~FusionMemory() { free(); }
  FusionMemory(const FusionMemory&) = delete;
  FusionMemory& operator=(const FusionMemory&) = delete;

  /// Where it begins, of Workbench::fusion_bytes(); made by the first call. Throws DriverError or
  /// NcclError where the GPU has too little memory.
  std::byte* use(const Channel& channel);

  /// Ends the registrations, before the communicators are closed.
  void deregister() noexcept { registrations_.clear(); }

  /// Of a GPU that hangs: neither frees nor deregisters it.
  void abandon() noexcept { memory_ = nullptr; }

 private:
  void allocate(const Channel& channel);
  void free() noexcept;

  cuda::RegistrationCache* const cache_;
  std::shared_ptr<const NcclApi> api_;  ///< of what NCCL has allocated, with its context
  std::shared_ptr<const cuda::DeviceContext> context_;
  void* memory_ = nullptr;  ///< what NCCL has allocated
  std::byte* begin_ = nullptr;
  std::map<Communicator, std::shared_ptr<cuda::Registration>> registrations_;
};

}  // namespace ronde::nccl

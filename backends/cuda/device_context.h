// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/cuda/driver_api.h"

namespace ronde::cuda {

/// The primary context of one GPU, which the CUDA runtime and so LibTorch use, too. Whatever is
/// made on the GPU holds it.
///
/// Thread-safety: full; it is constant but for its counter.
class DeviceContext {
 public:
  /// `index`: of the GPU, among those that are visible. Throws DriverError if there is no such GPU,
  /// or no room on it for a context.
  DeviceContext(std::shared_ptr<const DriverApi> api, int index);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const DriverApi& api() const noexcept { return *api_; }
  int index() const noexcept { return gpu_.index; }
  /// Who the GPU is, for peers: ordinals mean nothing to them.
  const Gpu& gpu() const noexcept { return gpu_; }
  int multiprocessors() const noexcept { return multiprocessors_; }

  /// Calls a function of the driver's in this context; throws DriverError unless it succeeds.
  template <typename... Arguments, typename... Given>
  void call(const std::string& doing, vendor::Entry<Result, Arguments...> DriverApi::*function,
            Given... given) const;

  /// Gives something back in a destructor: calls `function` in this context. Where that fails there
  /// is nobody to throw at, and the memory or handle is lost, which is counted. Once the process
  /// ends the driver refuses everything; that does not count.
  template <typename... Arguments, typename... Given>
  void release(const vendor::Entry<Result, Arguments...>& function, Given... given) const noexcept;
  /// How many were lost.
  std::uint64_t lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

 private:
  friend class Current;
  void count_lost(Result result) const noexcept;

  const std::shared_ptr<const DriverApi> api_;
  DeviceHandle device_ = 0;
  ContextHandle handle_ = nullptr;
  Gpu gpu_;
  int multiprocessors_ = 0;
  mutable std::atomic<std::uint64_t> lost_{0};
};

/// While it lives, the context is that of the calling thread; then the one before. Most calls of
/// the driver need it. They do not disturb the capture of a CUDA graph by another thread, for which
/// the driver else takes any call that it might depend on.
class Current {
 public:
  explicit Current(const DeviceContext& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const DeviceContext& context_;
  int mode_ = kCaptureRelaxed;  ///< then that of the thread before
};

template <typename... Arguments, typename... Given>
void DeviceContext::call(const std::string& doing,
                         vendor::Entry<Result, Arguments...> DriverApi::*function,
                         Given... given) const {
  const Current current(*this);
  check(*api_, doing, *api_.*function, given...);
}

template <typename... Arguments, typename... Given>
void DeviceContext::release(const vendor::Entry<Result, Arguments...>& function,
                            Given... given) const noexcept {
  try {
    const Current current(*this);
    count_lost(function(given...));
  } catch (const DriverError& error) {
    count_lost(error.result());
  }
}

}  // namespace ronde::cuda

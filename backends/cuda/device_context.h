// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/cuda/driver_api.h"

namespace ronde::cuda {

/// While it lives, calls of this thread do not disturb the capture of a CUDA graph by another one,
/// for which the driver else takes any that it might depend on.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverApi& api) noexcept
      : api_(api), is_changed_(api.exchange_capture_mode(&mode_) == kSuccess) {}
  ~RelaxedCapture() {
    if (is_changed_) static_cast<void>(api_.exchange_capture_mode(&mode_));
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DriverApi& api_;
  int mode_ = kCaptureRelaxed;  ///< then that of the thread before
  const bool is_changed_;
};

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
  void release(const vendor::Entry<Result, Arguments...>& function, Given... given) const noexcept {
    Result result = api_->context_push(handle_);
    if (result == kSuccess) {
      const RelaxedCapture relaxed(*api_);
      result = function(given...);
      ContextHandle popped = nullptr;
      count_lost(api_->context_pop(&popped));
    }
    count_lost(result);
  }
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
/// the driver need it. Captures by other threads go on (RelaxedCapture).
class Current {
 public:
  explicit Current(const DeviceContext& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const DeviceContext& context_;
  const RelaxedCapture relaxed_;
};

template <typename... Arguments, typename... Given>
void DeviceContext::call(const std::string& doing,
                         vendor::Entry<Result, Arguments...> DriverApi::*function,
                         Given... given) const {
  const Current current(*this);
  check(*api_, doing, *api_.*function, given...);
}

}  // namespace ronde::cuda

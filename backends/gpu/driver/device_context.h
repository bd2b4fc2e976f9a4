// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/driver/driver_api.h"

namespace ronde::cuda {

/// The primary context of one GPU, shared with the CUDA runtime and so with LibTorch. All that is
/// made on the GPU holds it.
///
/// Thread-safety: full.
class DeviceContext {
 public:
  /// `index`: the ordinal of a visible GPU. Throws DriverError if there is no such GPU, or no room
  /// on it for a context.
  DeviceContext(std::shared_ptr<const DriverApi> api, int index);
  ~DeviceContext();

  const DriverApi& api() const noexcept { return *api_; }
  int index() const noexcept { return gpu_.index; }
  /// Identifies the GPU to peers, which have other ordinals.
  const Gpu& gpu() const noexcept { return gpu_; }
  int multiprocessors() const noexcept { return multiprocessors_; }

  /// Calls a function of the driver in this context; throws DriverError unless it succeeds.
  template <typename... Arguments, typename... Given>
  void call(const std::string& doing, vendor::Entry<Result, Arguments...> DriverApi::*function,
            Given... given) const;

  /// Calls `function` in this context, to give something back in a destructor. A failure is counted
  /// as a loss, but not at the end of the process, when the driver refuses all calls.
  template <typename... Arguments, typename... Given>
  void release(const vendor::Entry<Result, Arguments...>& function, Given... given) const noexcept;
  /// The number of losses.
  std::uint64_t lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

  /// For Event: events are used again, as making one takes longer than recording it.
  EventHandle take_event() const;
  void give_back(EventHandle event) const noexcept;

 private:
  friend class Current;
  void count_lost(Result result) const noexcept;

  const std::shared_ptr<const DriverApi> api_;
  DeviceHandle device_ = 0;
  ContextHandle handle_ = nullptr;
  Gpu gpu_;
  int multiprocessors_ = 0;
  mutable std::atomic<std::uint64_t> lost_{0};
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  mutable std::vector<EventHandle> unused_events_;  ///< has room for all that were made
  mutable std::size_t events_made_ = 0;
};

/// Makes the context current on the calling thread while it lives, as most driver calls need, and
/// in a mode in which they do not disturb the capture of a CUDA graph by another thread.
class Current {
 public:
  explicit Current(const DeviceContext& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const DeviceContext& context_;
  int mode_ = kCaptureRelaxed;  ///< after the constructor, the thread's previous mode
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

/// What a function of the driver has made on a GPU, and `kRelease` gives back.
///
/// Thread-safety: as a pointer.
template <typename Handle, vendor::Entry<Result, Handle> DriverApi::*kRelease>
class Owned {
 public:
  Owned() = default;
  Owned(std::shared_ptr<const DeviceContext> context, Handle handle)
      : context_(std::move(context)), handle_(handle) {}
  Owned(Owned&& other) noexcept : Owned(std::move(other.context_), other.handle_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (context_) context_->release(context_->api().*kRelease, handle_);
  }

  Handle get() const noexcept { return handle_; }
  const std::shared_ptr<const DeviceContext>& context() const noexcept { return context_; }
  explicit operator bool() const noexcept { return context_ != nullptr; }

 private:
  std::shared_ptr<const DeviceContext> context_;
  Handle handle_{};
};

}  // namespace ronde::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/gpu/driver/device_context.h"
#include "backends/gpu/driver/stream.h"
#include "ronde/device.h"

namespace ronde::cuda {

/// The GPU that a rank's tensors are on, and the order between Ronde's streams and the program's.
/// The first operation determines the GPU; nothing is made on any GPU before.
///
/// Thread-safety: as DeviceStreams.
class CudaStreams final : public DeviceStreams {
 public:
  /// `on_gpu`: is told the UUID of the rank's GPU; may be empty.
  explicit CudaStreams(std::shared_ptr<const DriverApi> api,
                       std::function<void(const std::string& uuid)> on_gpu = {});

  std::shared_ptr<const DeviceEvent> mark(int device, void* stream) override;
  std::shared_ptr<const DeviceEvent> copy(int device, void* to, const void* from,
                                          std::size_t bytes) override;
  DrainStatus drain(std::chrono::nanoseconds bound) noexcept override;
  void cancel_waits() noexcept override;

  /// Sets the function that cancel_waits() calls, which must call nothing here; empty: none.
  void cancel_waits_by(std::function<void()> release);
  /// Sets what drain() asks before the streams: whether nobody queues work any more, with a
  /// deadline.
  void drain_after(std::function<bool(std::chrono::steady_clock::time_point)> is_idle);

  /// The ordinal of the rank's GPU; before the first operation, that of its place on the host.
  /// Throws DriverError.
  int own_device(int local_rank) const;

  /// The context on this GPU, which becomes the rank's. Throws UsageError if the rank has another
  /// GPU, DriverError if there is no room for a context.
  std::shared_ptr<const DeviceContext> context(int device);

  /// Makes a stream on the rank's GPU, which drain() waits for.
  std::shared_ptr<Stream> make_stream(int device);

  /// Returns an event that is done once all work queued so far has run, for Operation::event().
  static std::shared_ptr<const DeviceEvent> mark(const Stream& stream);

  /// The number of handles and allocations that could not be given back.
  std::uint64_t lost() const;

 private:
  const std::shared_ptr<const DriverApi> api_;
  const std::function<void(const std::string& uuid)> on_gpu_;
  std::shared_ptr<Stream> copies_;  ///< of copy(), once it was called
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<const DeviceContext> context_;  ///< null before the first operation
  std::vector<std::weak_ptr<Stream>> streams_;
  std::function<void()> release_;
  std::function<bool(std::chrono::steady_clock::time_point)> is_idle_;
};

}  // namespace ronde::cuda

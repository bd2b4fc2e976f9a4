// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace ronde {

/// A point in the work of a device, behind all work that was queued before it.
///
/// Thread-safety: full.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  DeviceEvent() = default;
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  /// Returns whether the device has reached it. Never blocks. Throws ronde::Error if the device
  /// failed.
  virtual bool passed() const = 0;

  /// Orders work that is queued on `stream` (of the same device; a cudaStream_t) from now on after
  /// it. Never blocks. Throws ronde::Error if the device failed.
  virtual void order(void* stream) const = 0;
};

/// Points that the device must reach before memory is accessed.
using DeviceEvents = std::span<const std::shared_ptr<const DeviceEvent>>;

/// The state of work that is queued on a device; the worst last.
enum class DrainStatus : std::uint8_t {
  Reached,
  NotYet,
  Unknown,  ///< the device has failed: its state is not known, and will not be
};

/// Orders Ronde's work on a kind of device with the program's: by events in streams, so that no
/// thread waits.
///
/// Thread-safety: full, but for copy().
class DeviceStreams {
 public:
  virtual ~DeviceStreams() = default;
  DeviceStreams() = default;
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  /// Returns the end of all work that is queued now on `stream` of the device with this ordinal.
  /// Throws UsageError if this rank is not served there, or the stream is being captured.
  virtual std::shared_ptr<const DeviceEvent> mark(int device, void* stream) = 0;

  /// Copies between memory of the CPU and of the device with this ordinal, in the order of the
  /// calls, which one thread makes at a time. Returns the end of the copy. Throws ronde::Error if
  /// the device failed.
  virtual std::shared_ptr<const DeviceEvent> copy(int device, void* to, const void* from,
                                                  std::size_t bytes) = 0;

  /// After Backend::abort(): waits up to `bound` until work that Ronde has queued no longer
  /// accesses memory.
  virtual DrainStatus drain(std::chrono::nanoseconds bound) noexcept = 0;

  /// After Backend::abort(), if drain() takes too long: cancels waits for other ranks, if
  /// possible; work behind such a wait then sees arbitrary data. Returns at once, and is called
  /// repeatedly, as a rank that dies may still undo it.
  virtual void cancel_waits() noexcept {}
};

}  // namespace ronde

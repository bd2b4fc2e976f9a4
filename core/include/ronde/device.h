// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace ronde {

/// A point in the work of a device: whatever had been queued before it.
///
/// Thread-safety: full.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  DeviceEvent() = default;
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  /// Whether the device has come to it. Never blocks. Throws ronde::Error if the device failed.
  virtual bool passed() const = 0;

  /// What is queued on `stream` (of the same device; a cudaStream_t) from now on runs after it.
  /// Never blocks. Throws ronde::Error if the device failed.
  virtual void order(void* stream) const = 0;
};

/// Points that all have to be passed before something is touched.
using DeviceEvents = std::span<const std::shared_ptr<const DeviceEvent>>;

/// Whether what is queued on a device has ended; the worst last.
enum class Rest : std::uint8_t {
  Reached,
  NotYet,
  Unknown,  ///< the device has failed: what it still does is not known, and will not be
};

/// How Ronde's work on a kind of device is ordered with the program's: by events in streams, so
/// that no thread waits.
///
/// Thread-safety: full.
class DeviceStreams {
 public:
  virtual ~DeviceStreams() = default;
  DeviceStreams() = default;
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  /// The point that `stream` of the device with this ordinal has come to: all that is queued there
  /// now. Throws UsageError if this rank is not served there, or the stream is being captured.
  virtual std::shared_ptr<const DeviceEvent> mark(int device, void* stream) = 0;

  /// After Backend::abort(): waits until nothing of what Ronde has queued touches memory any more,
  /// for no longer than `bound`.
  virtual Rest settle(std::chrono::nanoseconds bound) noexcept = 0;

  /// After Backend::abort(), where settle() takes too long: ends what waits for other ranks, if
  /// that can be had; what is behind such a wait then works on anything. It waits for nothing, and
  /// is called again and again, as a rank that dies may still undo it.
  virtual void end_waits() noexcept {}
};

}  // namespace ronde

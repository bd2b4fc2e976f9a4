// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backends/gpu/driver/device_context.h"

namespace ronde::cuda {

constexpr const char* kOrdering = "ordering streams";  ///< for texts

/// An event of a context, which gets it back in the end.
///
/// Thread-safety: one thread at a time.
class Event {
 public:
  /// Throws DriverError.
  explicit Event(const std::shared_ptr<const DeviceContext>& context)
      : handle_(context->take_event(), GiveBack{context}) {}

  EventHandle handle() const noexcept { return handle_.get(); }
  const DeviceContext& context() const noexcept { return *handle_.get_deleter().context; }
  /// Whether the stream has reached the last recording. Throws DriverError if work before it
  /// failed.
  bool is_done() const;

 private:
  struct GiveBack {
    std::shared_ptr<const DeviceContext> context;
    void operator()(EventHandle handle) const noexcept { context->give_back(handle); }
  };
  std::unique_ptr<EventTag, GiveBack> handle_;
};

/// A stream of Ronde's own. Only events order it with the framework's streams, never a wait for the
/// device.
///
/// Thread-safety: one thread at a time.
class Stream {
 public:
  /// Makes a stream of the GPU's highest priority, as communication is waited for. Work that is
  /// queued when it is destroyed still runs; its memory must live as long.
  explicit Stream(std::shared_ptr<const DeviceContext> context);

  StreamHandle handle() const noexcept { return handle_.get(); }
  const std::shared_ptr<const DeviceContext>& context() const noexcept { return handle_.context(); }

  /// Work queued from now on runs after the event's last recording.
  void wait_for(const Event& event);
  /// The event is done once all work queued so far has run.
  void record(const Event& event);

  /// Writes to 32-bit words once all work queued so far has run and its writes are visible.
  void write(std::span<const DevicePointer> words, std::uint32_t value);
  /// Work queued from now on runs once each word has reached the value or passed it, modulo 2^32.
  void wait_for(std::span<const DevicePointer> words, std::uint32_t value);

  /// Copies between any two kinds of memory. The call waits for the copy if host memory is not
  /// pinned.
  void copy(DevicePointer to, DevicePointer from, std::size_t bytes, const std::string& doing);
  void fill(DevicePointer to, unsigned char value, std::size_t bytes, const std::string& doing);

  /// Whether all queued work has run.
  bool is_idle() const;

 private:
  void do_with(std::span<const DevicePointer> words, std::uint32_t value, unsigned operation,
               const std::string& doing);

  Owned<StreamHandle, &DriverApi::stream_destroy> handle_;
};

}  // namespace ronde::cuda

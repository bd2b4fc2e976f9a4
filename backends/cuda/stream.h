// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backends/cuda/device_context.h"

namespace ronde::cuda {

/// An event of a pool, to which it goes back. Recorded and waited for as often as one likes.
///
/// Thread-safety: one thread at a time.
class Event;

/// Events that are made once and used again: making one takes longer than recording it. They carry
/// no times.
///
/// Thread-safety: full. Its events may outlive it.
class EventPool {
 public:
  explicit EventPool(std::shared_ptr<const DeviceContext> context);

  /// Throws DriverError.
  Event take();

 private:
  friend class Event;
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

class Event {
 public:
  Event() = default;

  EventHandle handle() const noexcept { return handle_.get(); }
  /// Whether the stream has come to the last recording. Throws DriverError if what is before it
  /// failed.
  bool is_done() const;

 private:
  friend class EventPool;
  struct GiveBack {
    std::shared_ptr<EventPool::Shared> pool;
    void operator()(EventHandle handle) const noexcept;
  };
  std::unique_ptr<EventTag, GiveBack> handle_;
};

/// A stream of Ronde's own, beside those of the framework: it is ordered with them by events alone,
/// and never by waiting for the device.
///
/// Thread-safety: one thread at a time.
class Stream {
 public:
  /// With the highest priority that the GPU knows: what travels is waited for.
  explicit Stream(std::shared_ptr<const DeviceContext> context);
  /// Work that is still queued runs on; its memory has to live as long.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const noexcept { return handle_; }
  const DeviceContext& context() const noexcept { return *context_; }

  /// What is queued from now on runs after the event's last recording.
  void wait_for(const Event& event);
  /// The event is done once all that is queued now has run.
  void record(const Event& event);

  /// Writes to each of these words of 32 bits once all that is queued now has run, and shows.
  void write(std::span<const DevicePointer> words, std::uint32_t value);
  /// What is queued from now on runs once each of these words has come to the value, or beyond it:
  /// words count, and may go past the largest number.
  void wait_for(std::span<const DevicePointer> words, std::uint32_t value);

  /// Between any two kinds of memory. Host memory has to be pinned, or the call waits for the copy.
  void copy(DevicePointer to, DevicePointer from, std::size_t bytes, const std::string& doing);
  void fill(DevicePointer to, unsigned char value, std::size_t bytes, const std::string& doing);

  /// Whether all that was queued has run.
  bool is_idle() const;

 private:
  void do_with(std::span<const DevicePointer> words, std::uint32_t value, unsigned operation,
               const std::string& doing);

  const std::shared_ptr<const DeviceContext> context_;
  StreamHandle handle_ = nullptr;
};

}  // namespace ronde::cuda

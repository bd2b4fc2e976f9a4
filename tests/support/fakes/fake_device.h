// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ronde/backend.h"
#include "ronde/device.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

/// A device whose memory is the host's, and which gets on when the test says so. It is at work
/// asynchronously: what has been queued reaches memory when it passes.
///
/// Thread-safety: every member may be called from any thread.
class FakeDevice final : public DeviceStreams, public std::enable_shared_from_this<FakeDevice> {
 public:
  explicit FakeDevice(int ordinal) : ordinal_(ordinal) {}

  int ordinal() const noexcept { return ordinal_; }
  /// A stream of it, called so in log(). There may be 'A' to 'Z'.
  static void* stream(char name);

  /// Results, or marks in streams, that are queued from now on are passed by pass() only.
  /// @{
  void hold_results() { set(holds_results_, true); }
  void hold_marks() { set(holds_marks_, true); }
  /// @}
  /// The device comes to all that is queued, and to what will be.
  void pass();
  /// Whatever asks the device is told this.
  void fail(std::string text) { set(failure_, std::move(text)); }
  /// The same of those alone who order a stream.
  void fail_orders(std::string text) { set(order_failure_, std::move(text)); }
  /// drain() is in vain: what is queued may still reach memory.
  void hang() { set(hangs_, true); }

  /// Blocks until it has been asked so many times more whether an event has passed.
  void wait_asked(std::uint64_t times);

  /// What happened: "mark1 A" (in stream A), "read" (inputs), "result1" (queued), "order mark1 B"
  /// (stream B behind it), "drain" and "cancel waits" (the first time), "nobody" (an operation
  /// without any output here), and note().
  std::vector<std::string> log() const;
  void note(const std::string& text);

  std::shared_ptr<const DeviceEvent> mark(int device, void* stream) override;
  /// Held as results are.
  std::shared_ptr<const DeviceEvent> copy(int device, void* to, const void* from,
                                          std::size_t bytes) override;
  DrainStatus drain(std::chrono::nanoseconds bound) noexcept override;
  void cancel_waits() noexcept override;

  // What the backend and the events ask.
  std::shared_ptr<const DeviceEvent> queue_result(std::function<void()> write);
  bool passed(const bool& flag);
  void order(const std::string& event, std::shared_ptr<const bool> has_passed, void* stream);

 private:
  struct Queued {
    std::shared_ptr<bool> has_passed;
    std::function<void()> write;
  };
  template <typename Value>
  void set(Value& member, Value value) {
    const std::lock_guard lock(mutex_);
    member = std::move(value);
  }
  void log_once(const std::string& text);
  std::shared_ptr<const DeviceEvent> queue(const std::string& name, bool is_held,
                                           std::function<void()> write);

  const int ordinal_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool holds_results_ = false;
  bool holds_marks_ = false;
  bool hangs_ = false;
  std::string failure_;
  std::string order_failure_;
  std::uint64_t asked_ = 0;
  int results_ = 0;
  int marks_ = 0;
  std::vector<Queued> queued_;
  std::map<void*, std::shared_ptr<const bool>> behind_;  ///< what a stream was ordered after last
  std::vector<std::string> log_;
};

/// A backend called "fake" for this device of the rank, which has the backend of the CPU do the
/// work in between.
BackendFactory fake_device_factory(std::shared_ptr<FakeDevice> device);

/// A group of ranks as threads, each with a device of its own: that of rank r is number r + 3.
struct DeviceGroup {
  explicit DeviceGroup(int size);

  FakeDevice& device(int rank) const { return *devices[static_cast<std::size_t>(rank)]; }
  RuntimeOptions options(int rank, Config config = test_config()) const;
  using Change = std::function<void(int rank, RuntimeOptions& options)>;
  /// `body` between start and shutdown on every rank, whose options `change` has altered, and whose
  /// device has come to all then.
  void run(const std::function<void(int rank, Runtime& runtime, FakeDevice& device)>& body,
           const Change& change = {}) const;

  inproc::Group group;
  std::vector<std::shared_ptr<FakeDevice>> devices;  ///< by rank
};

/// `request` for buffers on `device`, ready in stream A.
Request on_device(Request request, const FakeDevice& device);

}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "ronde/error.h"
#include "tests/support/fakes/wrapped_backend.h"

namespace ronde::test {

/// What shall go wrong in a FaultyBackend, and what has happened in it.
///
/// Thread-safety: every member may be called from any thread.
class Faults {
 public:
  /// Operations begun from now on do not reach the backend until release(): peers wait in theirs.
  void hold_starts() { holds_starts_ = true; }
  /// Operations do reach the backend, but do not end here until release().
  void hold_ends() { holds_ends_ = true; }
  void release() { holds_starts_ = holds_ends_ = false; }

  /// What backends made from now on say of themselves in place of what the inner one does.
  void change_capabilities(std::function<void(Capabilities&)> change) {
    const std::lock_guard lock(mutex_);
    change_capabilities_ = std::move(change);
  }

  /// What prepare_sleep() of backends returns.
  void sleep_on(int descriptor) { sleeps_on_ = descriptor; }

  /// The n-th operation from now, 1 for the next, throws when it is begun, or polled.
  void fail_start(int nth, std::string text) { arm(start_, nth, std::move(text)); }
  /// `lost`: the rank that it names, if any.
  void fail_poll(int nth, std::string text, std::optional<int> lost = {}) {
    arm(poll_, nth, std::move(text), lost);
  }
  /// The same, with `first` called on that thread before it throws; not to call this object.
  void fail_poll(int nth, std::string text, std::function<void()> first) {
    arm(poll_, nth, std::move(text), {}, std::move(first));
  }
  /// The n-th operation from now, 1 for the next, has a result whose first bit is wrong.
  void flip_bit(int nth) { arm(flip_, nth, {}); }
  /// The backend cannot be made, or closed.
  void fail_create(std::string text) { arm(create_, 1, std::move(text)); }
  void fail_close(std::string text) { arm(close_, 1, std::move(text)); }

  /// Blocks until `count` operations have been begun since the beginning.
  void wait_begun(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_ >= count; });
  }
  int begun() const { return begun_; }
  /// How often operations were polled.
  std::uint64_t polls() const { return polls_; }
  bool aborted() const { return aborted_; }
  bool closed() const { return closed_; }
  /// Called when a backend is destroyed, on that thread; to be set before there is one.
  void when_destroyed(std::function<void()> action) { when_destroyed_ = std::move(action); }

 private:
  friend class FaultyBackend;
  friend BackendFactory faulty_factory(const BackendFactory&, std::shared_ptr<Faults>);

  struct Fault {
    int countdown = 0;
    std::string text;
    std::optional<int> lost;
    std::function<void()> first;
  };

  void arm(Fault& fault, int nth, std::string text, std::optional<int> lost = {},
           std::function<void()> first = {}) {
    const std::lock_guard lock(mutex_);
    fault = {nth, std::move(text), lost, std::move(first)};
  }
  bool flips() {
    const std::lock_guard lock(mutex_);
    return flip_.countdown > 0 && --flip_.countdown == 0;
  }
  void strike(Fault& fault) {
    const std::lock_guard lock(mutex_);
    if (fault.countdown == 0 || --fault.countdown > 0) return;
    if (fault.first) fault.first();
    if (fault.lost) throw GroupError(*fault.lost, fault.text);
    throw Error(fault.text);
  }
  void begin() {
    {
      const std::lock_guard lock(mutex_);
      ++begun_;
    }
    changed_.notify_all();
    strike(start_);
  }
  Capabilities changed(Capabilities capabilities) const {
    const std::lock_guard lock(mutex_);
    if (change_capabilities_) change_capabilities_(capabilities);
    return capabilities;
  }

  std::atomic<bool> holds_starts_ = false, holds_ends_ = false, aborted_ = false, closed_ = false;
  std::atomic<int> begun_ = 0, sleeps_on_ = -1;
  std::atomic<std::uint64_t> polls_ = 0;
  std::condition_variable changed_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  Fault start_, poll_, create_, close_, flip_;
  std::function<void(Capabilities&)> change_capabilities_;

  std::function<void()> when_destroyed_;  // constant once there is a backend
};

/// Wraps any backend and goes wrong as its Faults say.
class FaultyBackend final : public WrappedBackend {
 public:
  FaultyBackend(std::unique_ptr<Backend> inner, std::shared_ptr<Faults> faults)
      : WrappedBackend("faulty", std::move(inner)), faults_(std::move(faults)) {}
  ~FaultyBackend() override {
    if (faults_->when_destroyed_) faults_->when_destroyed_();
  }

  Capabilities capabilities() const override {
    return faults_->changed(WrappedBackend::capabilities());
  }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    const auto wire = static_cast<std::size_t>(call.wire_dtype.value_or(call.dtype));
    if (call.wire_dtype && !capabilities().wire_dtypes.test(wire)) {
      throw Error("a backend was given a wire_dtype that it never promised");
    }
    return WrappedBackend::allreduce(call);
  }
  int prepare_sleep() override { return faults_->sleeps_on_; }
  void abort() noexcept override {
    faults_->aborted_ = true;
    WrappedBackend::abort();
  }
  void close() override {
    faults_->closed_ = true;
    faults_->strike(faults_->close_);
    WrappedBackend::close();
  }

 private:
  class FaultyOperation final : public Operation {
   public:
    /// `flipped`: the byte that shall be wrong, or null.
    FaultyOperation(Start start, std::shared_ptr<Faults> faults, std::byte* flipped)
        : start_(std::move(start)), faults_(std::move(faults)), flipped_(flipped) {}

    bool poll() override {
      ++faults_->polls_;
      faults_->strike(faults_->poll_);
      if (!inner_ && faults_->holds_starts_) return false;
      if (!inner_) inner_ = start_();
      ended_ = ended_ || inner_->poll();
      if (ended_ && flipped_ != nullptr) *std::exchange(flipped_, nullptr) ^= std::byte{1};
      return ended_ && !faults_->holds_ends_;
    }

   private:
    const Start start_;
    const std::shared_ptr<Faults> faults_;
    std::byte* flipped_;
    std::unique_ptr<Operation> inner_;
    bool ended_ = false;
  };

  std::unique_ptr<Operation> wrap(Start start, void* output) override {
    faults_->begin();
    auto* const flipped = faults_->flips() ? static_cast<std::byte*>(output) : nullptr;
    return std::make_unique<FaultyOperation>(std::move(start), faults_, flipped);
  }

  const std::shared_ptr<Faults> faults_;
};

/// A factory like `inner` whose backends have `faults`.
inline BackendFactory faulty_factory(const BackendFactory& inner, std::shared_ptr<Faults> faults) {
  BackendFactory factory = inner;
  factory.create = [create = inner.create, faults = std::move(faults)](BackendContext& context) {
    faults->strike(faults->create_);
    return std::make_unique<FaultyBackend>(create(context), faults);
  };
  return factory;
}

}  // namespace ronde::test

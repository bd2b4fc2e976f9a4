// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ronde/backend.h"
#include "ronde/error.h"

namespace ronde::test {

/// What shall go wrong in a FaultyBackend, and what has happened in it.
///
/// Thread-safety: every member may be called from any thread.
class Faults {
 public:
  /// Operations begun from now on do not reach the backend until release(): peers wait in theirs.
  void hold_starts() { set(hold_starts_, true); }
  /// Operations do reach the backend, but do not end here until release().
  void hold_ends() { set(hold_ends_, true); }
  void release() {
    const std::lock_guard lock(mutex_);
    hold_starts_ = hold_ends_ = false;
  }

  /// What backends made from now on say of themselves in place of what the inner one does.
  void change_capabilities(std::function<void(Capabilities&)> change) {
    const std::lock_guard lock(mutex_);
    change_capabilities_ = std::move(change);
  }

  /// The n-th operation from now, 1 for the next, throws when it is begun, or polled.
  void fail_start(int nth, std::string text) { arm(start_, nth, std::move(text)); }
  void fail_poll(int nth, std::string text) { arm(poll_, nth, std::move(text)); }
  /// The backend cannot be made, or closed.
  void fail_create(std::string text) { arm(create_, 1, std::move(text)); }
  void fail_close(std::string text) { arm(close_, 1, std::move(text)); }

  /// Blocks until `count` operations have been begun since the beginning.
  void wait_begun(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_ >= count; });
  }
  int begun() const {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  /// How often operations were polled.
  std::uint64_t polls() const {
    const std::lock_guard lock(mutex_);
    return polls_;
  }
  Capabilities changed(Capabilities capabilities) const {
    const std::lock_guard lock(mutex_);
    if (change_capabilities_) change_capabilities_(capabilities);
    return capabilities;
  }
  bool aborted() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  /// Called when a backend is destroyed, on that thread; to be set before there is one.
  void when_destroyed(std::function<void()> action) { when_destroyed_ = std::move(action); }

  // What the backend reports.
  void on_create() { strike(create_); }
  void on_close() {
    set(closed_, true);
    strike(close_);
  }
  void on_destroy() const {
    if (when_destroyed_) when_destroyed_();
  }
  void on_poll() {
    {
      const std::lock_guard lock(mutex_);
      ++polls_;
    }
    strike(poll_);
  }
  void on_abort() { set(aborted_, true); }
  void on_begin() {
    {
      const std::lock_guard lock(mutex_);
      ++begun_;
      changed_.notify_all();
    }
    strike(start_);
  }
  bool holds_starts() const {
    const std::lock_guard lock(mutex_);
    return hold_starts_;
  }
  bool holds_ends() const {
    const std::lock_guard lock(mutex_);
    return hold_ends_;
  }

 private:
  struct Fault {
    int countdown = 0;
    std::string text;
  };

  void set(bool& flag, bool value) {
    const std::lock_guard lock(mutex_);
    flag = value;
  }
  void arm(Fault& fault, int nth, std::string text) {
    const std::lock_guard lock(mutex_);
    fault = {nth, std::move(text)};
  }
  void strike(Fault& fault) {
    const std::lock_guard lock(mutex_);
    if (fault.countdown > 0 && --fault.countdown == 0) throw Error(fault.text);
  }

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool hold_starts_ = false;
  bool hold_ends_ = false;
  bool aborted_ = false;
  bool closed_ = false;
  int begun_ = 0;
  std::uint64_t polls_ = 0;
  Fault start_, poll_, create_, close_;
  std::function<void(Capabilities&)> change_capabilities_;

  std::function<void()> when_destroyed_;  // constant once there is a backend
};

/// Wraps any backend and goes wrong as its Faults say.
class FaultyBackend final : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}
  ~FaultyBackend() override { faults_->on_destroy(); }

  std::string_view name() const noexcept override { return "faulty"; }
  Capabilities capabilities() const override { return faults_->changed(inner_->capabilities()); }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    const auto wire = static_cast<std::size_t>(call.wire_dtype.value_or(call.dtype));
    if (call.wire_dtype && !capabilities().wire_dtypes.test(wire)) {
      throw Error("a backend was given a wire_dtype that it never promised");
    }
    return begin([this, call] { return inner_->allreduce(call); });
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return begin([this, call] { return inner_->broadcast(call); });
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return begin([this, call] { return inner_->allgather(call); });
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return begin([this, call] { return inner_->alltoall(call); });
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return begin([this, call] { return inner_->reducescatter(call); });
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return begin([this, call] { return inner_->send(call); });
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return begin([this, call] { return inner_->recv(call); });
  }
  void abort() noexcept override {
    faults_->on_abort();
    inner_->abort();
  }
  void close() override {
    faults_->on_close();
    inner_->close();
  }
  StatsGroup stats() const override { return inner_->stats(); }

 private:
  using Start = std::function<std::unique_ptr<Operation>()>;

  class FaultyOperation final : public Operation {
   public:
    FaultyOperation(Start start, std::shared_ptr<Faults> faults)
        : start_(std::move(start)), faults_(std::move(faults)) {}

    bool poll() override {
      faults_->on_poll();
      if (!inner_ && faults_->holds_starts()) return false;
      if (!inner_) inner_ = start_();
      ended_ = ended_ || inner_->poll();
      return ended_ && !faults_->holds_ends();
    }

   private:
    const Start start_;
    const std::shared_ptr<Faults> faults_;
    std::unique_ptr<Operation> inner_;
    bool ended_ = false;
  };

  std::unique_ptr<Operation> begin(Start start) {
    faults_->on_begin();
    return std::make_unique<FaultyOperation>(std::move(start), faults_);
  }

  const std::unique_ptr<Backend> inner_;
  const std::shared_ptr<Faults> faults_;
};

/// A factory like `inner` whose backends have `faults`.
inline BackendFactory faulty_factory(const BackendFactory& inner, std::shared_ptr<Faults> faults) {
  BackendFactory factory = inner;
  factory.create = [create = inner.create, faults = std::move(faults)](BackendContext& context) {
    faults->on_create();
    return std::make_unique<FaultyBackend>(create(context), faults);
  };
  return factory;
}

}  // namespace ronde::test

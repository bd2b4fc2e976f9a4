// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "ronde/plugin/backend.h"

namespace ronde {

template <typename Polled>
class UntilPolled;

/// An operation written as a coroutine, in the order in which things happen: it suspends wherever
/// it has to wait (`co_await until(...)`, or `co_await steps` of others), and continues when it is
/// polled. Its reference arguments have to outlive it.
///
/// Thread-safety: one thread at a time.
class Steps {
 public:
  /// What a coroutine waits for.
  struct Condition {
    virtual bool holds() const = 0;
    virtual std::uint64_t progress() const = 0;

   protected:
    ~Condition() = default;
  };

  struct promise_type {
    Steps get_return_object() { return Steps(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }

    const Condition* condition = nullptr;  ///< that it waits for; null: none
    std::exception_ptr thrown;             ///< by the condition, for the coroutine
    std::exception_ptr error;              ///< that ended it
    std::uint64_t progress = 0;
  };

  Steps() = default;
  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Steps& operator=(Steps&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Steps() {
    if (handle_) handle_.destroy();
  }

  /// Advances as far as it can without blocking; true once it has ended. Rethrows its error, at
  /// each call.
  bool poll() {
    promise_type& promise = handle_.promise();
    if (!handle_.done()) {
      if (promise.condition != nullptr && !holds(promise)) return false;
      promise.progress = progress() + 1;
      promise.condition = nullptr;
      handle_.resume();
      if (!handle_.done()) return false;  // it tested its condition before it was suspended
    }
    if (promise.error) std::rethrow_exception(promise.error);
    return true;
  }

  /// Grows as it, or the operation that it waits for, makes progress.
  std::uint64_t progress() const noexcept {
    if (!handle_) return 0;
    const promise_type& promise = handle_.promise();
    return promise.progress + (promise.condition != nullptr ? promise.condition->progress() : 0);
  }

  /// `co_await` waits until these have ended, and throws their exception. A temporary lives until
  /// then.
  UntilPolled<Steps> operator co_await() noexcept;

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Steps(Handle handle) : handle_(handle) {}

  /// An exception of the condition is thrown where the coroutine waits.
  static bool holds(promise_type& promise) noexcept {
    try {
      return promise.condition->holds();
    } catch (...) {
      promise.thrown = std::current_exception();
      return true;
    }
  }

  Handle handle_;
};

/// Waits for an object with poll() and progress(), or for a condition.
template <typename Polled>
class UntilPolled final : Steps::Condition {
 public:
  explicit UntilPolled(Polled& polled) : polled_(polled) {}

  bool await_ready() const { return holds(); }
  void await_suspend(std::coroutine_handle<Steps::promise_type> handle) noexcept {
    promise_ = &handle.promise();
    promise_->condition = this;
  }
  void await_resume() const {
    if (promise_ == nullptr || !promise_->thrown) return;
    std::rethrow_exception(std::exchange(promise_->thrown, nullptr));
  }

 private:
  bool holds() const override {
    if constexpr (requires { polled_.poll(); }) {
      return polled_.poll();
    } else {
      return polled_();
    }
  }
  std::uint64_t progress() const override {
    if constexpr (requires { polled_.progress(); }) return polled_.progress();
    return 0;
  }

  Polled& polled_;
  Steps::promise_type* promise_ = nullptr;
};

inline UntilPolled<Steps> Steps::operator co_await() noexcept {
  return UntilPolled<Steps>(*this);
}

/// `co_await until([&] { return ...; })` calls the condition at each poll, and throws its
/// exception. A temporary lives until then.
template <typename Condition>
UntilPolled<const Condition> until(const Condition& condition) {
  return UntilPolled<const Condition>(condition);
}

/// `co_await until_finished(operation)` waits for an operation of another backend.
inline UntilPolled<Operation> until_finished(Operation& operation) {
  return UntilPolled<Operation>(operation);
}

/// An operation that is made of steps.
class SteppedOperation : public Operation {
 public:
  bool poll() final { return steps_.poll(); }
  std::uint64_t progress() const final { return steps_.progress(); }
  std::shared_ptr<const DeviceEvent> event() const final { return event_; }

 protected:
  /// Sets the steps. Called by the constructor of the derived class, whose members they use.
  void begin(Steps steps) { steps_ = std::move(steps); }
  /// Sets event(), before the steps end.
  void set_event(std::shared_ptr<const DeviceEvent> event) { event_ = std::move(event); }

 private:
  Steps steps_;
  std::shared_ptr<const DeviceEvent> event_;
};

}  // namespace ronde

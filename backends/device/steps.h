// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "ronde/backend.h"

namespace ronde::device {

/// An operation written down in the order in which things happen: a coroutine that stops wherever
/// it has to wait (`co_await until(...)`), and goes on when it is asked again. What it is given by
/// reference has to outlive it.
///
/// Thread-safety: one thread at a time.
class Steps {
 public:
  struct promise_type {
    Steps get_return_object() { return Steps(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }

    /// What it waits for; null: nothing. Asked through a function, as its type is not known here.
    const void* condition = nullptr;
    bool (*holds)(const void* condition) = nullptr;
    std::exception_ptr error;
    std::uint64_t waits_over = 0;
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

  /// Goes on as far as it can without blocking; true once it has ended. Throws what it throws, and
  /// must not be asked again then.
  bool poll() {
    while (!handle_.done()) {
      promise_type& promise = handle_.promise();
      if (promise.holds != nullptr && !promise.holds(promise.condition)) return false;
      promise.holds = nullptr;
      ++promise.waits_over;
      handle_.resume();
    }
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return true;
  }

  /// Grows as it gets on.
  std::uint64_t progress() const noexcept { return handle_ ? handle_.promise().waits_over : 0; }

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Steps(Handle handle) : handle_(handle) {}

  Handle handle_;
};

/// What `co_await` waits for: `condition` is asked at each poll, and may throw.
template <typename Condition>
class Until {
 public:
  explicit Until(const Condition& condition) : condition_(condition) {}

  bool await_ready() const { return condition_(); }
  void await_suspend(std::coroutine_handle<Steps::promise_type> handle) const noexcept {
    Steps::promise_type& promise = handle.promise();
    promise.condition = &condition_;
    promise.holds = [](const void* held) { return (*static_cast<const Condition*>(held))(); };
  }
  void await_resume() const noexcept {}

 private:
  const Condition& condition_;
};

/// `co_await until([&] { return ...; })`: a temporary lives for as long as that takes.
template <typename Condition>
Until<Condition> until(const Condition& condition) {
  return Until<Condition>(condition);
}

/// The operation that such steps are.
class SteppedOperation : public Operation {
 public:
  bool poll() final { return steps_.poll(); }
  std::uint64_t progress() const final { return steps_.progress(); }
  std::shared_ptr<const DeviceEvent> event() const final { return event_; }

 protected:
  /// To be called by the constructor: of a derived class, whose members the steps use.
  void begin(Steps steps) { steps_ = std::move(steps); }
  /// Before the steps end.
  void set_event(std::shared_ptr<const DeviceEvent> event) { event_ = std::move(event); }

 private:
  Steps steps_;
  std::shared_ptr<const DeviceEvent> event_;
};

}  // namespace ronde::device

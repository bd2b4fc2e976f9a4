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

/// An operation that is written in the order in which things happen: a coroutine that stops
/// wherever it has to wait (`co_await until(...)`, or `co_await steps` of others), and continues
/// when it is polled. Its reference arguments have to outlive it.
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

    /// The condition that it waits for; null: none. Asked through a function, as its type is not
    /// known here.
    const void* condition = nullptr;
    bool (*holds)(const void* condition) = nullptr;
    std::uint64_t (*progress_of)(const void* condition) = nullptr;
    std::exception_ptr thrown;  ///< by the condition, for the coroutine
    std::exception_ptr error;   ///< that ended it
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

  /// Advances as far as it can without blocking; true once it has ended. Rethrows its error, and
  /// must not be polled again then.
  bool poll() {
    promise_type& promise = handle_.promise();
    if (!handle_.done()) {
      if (promise.holds != nullptr && !holds(promise)) return false;
      promise.progress = progress() + 1;
      promise.holds = nullptr;
      handle_.resume();
      if (!handle_.done()) return false;  // it has asked by itself before it stopped
    }
    if (promise.error) std::rethrow_exception(promise.error);
    return true;
  }

  /// Grows as it gets on, or what it waits for does.
  std::uint64_t progress() const noexcept {
    if (!handle_) return 0;
    const promise_type& promise = handle_.promise();
    const bool waits = promise.holds != nullptr;
    return promise.progress + (waits ? promise.progress_of(promise.condition) : 0);
  }

  /// `co_await` waits until these have ended, and throws what they throw. A temporary lives for as
  /// long as that takes.
  UntilPolled<Steps> operator co_await() noexcept;

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Steps(Handle handle) : handle_(handle) {}

  /// An exception of the condition is thrown where the coroutine waits.
  static bool holds(promise_type& promise) noexcept {
    try {
      return promise.holds(promise.condition);
    } catch (...) {
      promise.thrown = std::current_exception();
      return true;
    }
  }

  Handle handle_;
};

/// The common part of all forms of `co_await`: `Derived::holds()` says whether the wait is over,
/// and `Derived::progress()` how far it has come.
template <typename Derived>
class Wait {
 public:
  bool await_ready() const { return self().holds(); }
  void await_suspend(std::coroutine_handle<Steps::promise_type> handle) noexcept {
    promise_ = &handle.promise();
    promise_->condition = this;
    promise_->holds = [](const void* held) {
      return static_cast<const Wait*>(held)->self().holds();
    };
    promise_->progress_of = [](const void* held) {
      return static_cast<const Wait*>(held)->self().progress();
    };
  }
  void await_resume() const {
    if (promise_ == nullptr || !promise_->thrown) return;
    std::rethrow_exception(std::exchange(promise_->thrown, nullptr));
  }

 private:
  const Derived& self() const noexcept { return static_cast<const Derived&>(*this); }

  Steps::promise_type* promise_ = nullptr;
};

template <typename Condition>
class Until : public Wait<Until<Condition>> {
 public:
  explicit Until(const Condition& condition) : condition_(condition) {}
  bool holds() const { return condition_(); }
  std::uint64_t progress() const noexcept { return 0; }

 private:
  const Condition& condition_;
};

/// Waits for what is polled and tells its progress.
template <typename Polled>
class UntilPolled : public Wait<UntilPolled<Polled>> {
 public:
  explicit UntilPolled(Polled& polled) : polled_(polled) {}
  bool holds() const { return polled_.poll(); }
  std::uint64_t progress() const noexcept { return polled_.progress(); }

 private:
  Polled& polled_;
};

inline UntilPolled<Steps> Steps::operator co_await() noexcept {
  return UntilPolled<Steps>(*this);
}

/// `co_await until([&] { return ...; })`: asked at each poll; what it throws is thrown there. A
/// temporary lives for as long as that takes.
template <typename Condition>
Until<Condition> until(const Condition& condition) {
  return Until<Condition>(condition);
}

/// `co_await until_finished(operation)`: that of another backend.
inline UntilPolled<Operation> until_finished(Operation& operation) {
  return UntilPolled<Operation>(operation);
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

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "ronde/error.h"
#include "ronde/work.h"

/// `co_await work` for a Work or a TensorWork, in coroutines of any type. It returns and throws
/// what work.wait() does, once the operation is done: on a GPU, once the result is in memory.
///
///     ronde::Task<float> mean_of(at::Tensor loss, std::string name) {
///       const ronde::TensorWork work = ronde::allreduce_async(loss, {.name = name});
///       const at::Tensor mean = co_await work;
///       co_return mean.item<float>();
///     }
///     ronde::Task<float> first = mean_of(a, "a"), second = mean_of(b, "b");  // under way
///     use(first.get(), second.get());
///
/// A coroutine continues on the thread on which it awaited, and only while that thread calls
/// resume_coroutine() or Task::get(): never on Ronde's thread, which must not wait. A callback of
/// Ronde that awaits gets a UsageError.
///
/// A suspended frame may be destroyed, on that thread. The operation goes on like one whose Work is
/// dropped: raw buffers have to outlive it.
namespace ronde {

/// Resumes one coroutine of this thread: of those whose operations are done, the first to await.
/// Waits for one up to `duration` (nanoseconds::max(): for ever). Returns false if none is
/// suspended, or the time passed. Rethrows what the coroutine lets escape.
bool resume_coroutine(std::chrono::nanoseconds duration = std::chrono::nanoseconds::max());

template <typename T = void>
class Task;

namespace detail {

/// Suspends a coroutine until a work is done.
class Suspension {
 public:
  explicit Suspension(const Work& work) : state_(work.state_) {}
  ~Suspension();
  Suspension(const Suspension&) = delete;
  Suspension& operator=(const Suspension&) = delete;

  bool await_ready() const;
  void await_suspend(std::coroutine_handle<> coroutine);

 private:
  friend bool ronde::resume_coroutine(std::chrono::nanoseconds duration);
  struct OfThread;

  const std::shared_ptr<WorkState> state_;
  std::coroutine_handle<> coroutine_ = {};
  std::shared_ptr<OfThread> thread_ = {};  ///< null before await_suspend()
  bool is_watched_ = false;                ///< by the thread's CompletionQueue
};

template <typename SomeWork>
struct WorkAwaiter : Suspension {
  explicit WorkAwaiter(const SomeWork& awaited) : Suspension(awaited), work(awaited) {}
  decltype(auto) await_resume() const { return work.wait(); }

  const SomeWork work;
};

template <typename T>
struct Returned {
  void return_value(T returned) { value.emplace(std::move(returned)); }
  std::optional<T> value;
};
template <>
struct Returned<void> {
  void return_void() noexcept {}
};

template <typename T>
struct TaskPromise : Returned<T> {
  struct Continue : std::suspend_always {
    std::coroutine_handle<> await_suspend(std::coroutine_handle<TaskPromise> ended) noexcept {
      return ended.promise().continuation;
    }
  };
  Task<T> get_return_object() { return Task<T>(*this); }
  std::suspend_never initial_suspend() noexcept { return {}; }
  Continue final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { error = std::current_exception(); }

  std::coroutine_handle<> continuation = std::noop_coroutine();
  std::exception_ptr error;
};

}  // namespace detail

/// Waits for a Work or a TensorWork that has a name in the coroutine; see above.
template <typename SomeWork>
requires std::derived_from<std::remove_cvref_t<SomeWork>, Work>
    detail::WorkAwaiter<std::remove_cvref_t<SomeWork>>
operator co_await(SomeWork&& work) {
  static_assert(std::is_lvalue_reference_v<SomeWork>,
                "give the work a name and co_await that: GCC destroys options in braces twice "
                "where they stand in an awaited expression");
  return detail::WorkAwaiter<std::remove_cvref_t<SomeWork>>(work);
}

/// A coroutine that returns a T, for programs that have no such type. It starts when it is called.
/// Its value or error is taken once: by get(), or by a coroutine of the same thread that awaits the
/// Task, and that is not destroyed before it. The destructor destroys the frame, suspended or not.
///
/// Thread-safety: for the thread that made it alone.
template <typename T>
class [[nodiscard]] Task {
 public:
  /// What a coroutine of this type is made with.
  using promise_type = detail::TaskPromise<T>;

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  ~Task() {
    if (handle_) handle_.destroy();
  }

  /// Returns whether it has ended.
  bool done() const noexcept { return handle_.done(); }

  /// Resumes coroutines of this thread until this one has ended, and returns its value or throws
  /// its error. Throws UsageError if no coroutine of this thread awaits a work that would end it.
  T get() {
    while (!done()) {
      if (resume_coroutine()) continue;
      throw UsageError(
          "Task::get(): the coroutine awaits no Work on this thread, so it would never end here. "
          "Call get() on the thread on which it awaits");
    }
    return await_resume();
  }

  /// What `co_await` calls.
  /// @{
  bool await_ready() const noexcept { return done(); }
  void await_suspend(std::coroutine_handle<> awaiting) noexcept {
    handle_.promise().continuation = awaiting;
  }
  T await_resume() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    if constexpr (!std::is_void_v<T>) return std::move(*handle_.promise().value);
  }
  /// @}

 private:
  friend promise_type;
  using Handle = std::coroutine_handle<promise_type>;
  explicit Task(promise_type& promise) : handle_(Handle::from_promise(promise)) {}

  Handle handle_;
};

}  // namespace ronde

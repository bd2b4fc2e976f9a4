// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>

// What ThreadSanitizer sees of the fake driver: each stream is a fiber, and what the fakes keep for
// themselves is hidden. Without ThreadSanitizer these are plain calls.
namespace ronde::test::fake {

/// Next work of a stream; false: it is to be tried again.
using Work = std::function<bool()>;

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kStreamsAreFibers = true;

/// Runs the work of one stream, as code that only acquire(), release() and atomics order with
/// threads and other fibers.
///
/// Thread-safety: one thread at a time.
class Fiber {
 public:
  Fiber();
  ~Fiber();

  /// Runs work after what was released to its address.
  bool run(const Work& work);
  /// What the fiber has run so far comes before what the caller does next.
  void order_before_caller() const;
  /// Hides what it accesses from now on.
  void hide();

 private:
  struct Context;
  const std::unique_ptr<Context> context_;
};

/// What was done before release() comes before what follows an acquire() of the same address.
/// @{
void release(const void* token);
void acquire(const void* token);
/// @}

/// In between ThreadSanitizer sees neither what this thread or fiber accesses nor that it orders
/// anything. They may be nested.
/// @{
void hide();
void show();
/// @}
#else
inline constexpr bool kStreamsAreFibers = false;
struct Fiber {
  bool run(const Work& work) { return work(); }
  void order_before_caller() const {}
  void hide() {}
};
inline void release(const void*) {}
inline void acquire(const void*) {}
inline void hide() {}
inline void show() {}
#endif

struct Hidden {
  Hidden() { hide(); }
  ~Hidden() { show(); }
};

/// Hides itself, and what is done while it is locked.
struct HiddenMutex : std::mutex {
  void lock() { hide(), std::mutex::lock(); }
  void unlock() { std::mutex::unlock(), show(); }
};

}  // namespace ronde::test::fake

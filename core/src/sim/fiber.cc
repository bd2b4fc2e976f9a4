// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/src/base/caller.h"
#include "core/src/base/system.h"
#include "ronde/error.h"

#if defined(__has_feature)
#define RONDE_HAS_FEATURE(feature) __has_feature(feature)
#else
#define RONDE_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || RONDE_HAS_FEATURE(address_sanitizer)
#define RONDE_ADDRESS_SANITIZER 1
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__) || RONDE_HAS_FEATURE(thread_sanitizer)
#define RONDE_THREAD_SANITIZER 1
#include <sanitizer/tsan_interface.h>
// A function that is entered on one stack and left on another one must not be seen.
#define RONDE_SWITCHES __attribute__((no_sanitize("thread"), noinline))
#else
#define RONDE_SWITCHES
#endif

namespace ronde {
namespace {

#if defined(RONDE_ADDRESS_SANITIZER) || defined(RONDE_THREAD_SANITIZER)
constexpr std::size_t kStackBytes = std::size_t{512} << 10;
#else
constexpr std::size_t kStackBytes = std::size_t{64} << 10;
#endif

/// Memory for a stack, below which lies a page that cannot be touched.
class Stack {
 public:
  Stack() {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
    void* const mapped =
        ::mmap(nullptr, guard_bytes() + kStackBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (mapped != MAP_FAILED) memory_.reset(mapped);
    if (memory_ && ::mprotect(mapped, guard_bytes(), PROT_NONE) == 0) return;
    throw Error("no memory for the stack of another simulated rank: " + errno_text(errno) +
                ". Simulate fewer ranks, or raise vm.max_map_count, of which each needs two");
  }

  void* bottom() const noexcept { return static_cast<char*>(memory_.get()) + guard_bytes(); }

 private:
  static std::size_t guard_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

  struct Unmap {
    void operator()(void* memory) const noexcept { ::munmap(memory, guard_bytes() + kStackBytes); }
  };
  std::unique_ptr<void, Unmap> memory_;
};

/// What the C++ runtime (in the layout of its ABI) and Ronde know of a thread, which is another
/// thing for each fiber.
class ThreadState {
 public:
  void swap_with_thread() noexcept {
    void* const of_thread = abi::__cxa_get_globals();
    Exceptions exceptions;
    std::memcpy(&exceptions, of_thread, sizeof exceptions);
    std::memcpy(of_thread, &exceptions_, sizeof exceptions_);
    exceptions_ = exceptions;
    OwnWorkScope::swap(is_own_work_);
    EngineScope::swap(is_in_engine_);
    LoopThreadScope::swap(is_loop_thread_);
  }

 private:
  struct Exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };

  Exceptions exceptions_;
  bool is_own_work_ = false, is_in_engine_ = false, is_loop_thread_ = false;
};

}  // namespace

class Fiber::Context {
 public:
  explicit Context(std::function<void()> function) : function_(std::move(function)) {
    ::getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.bottom();
    own_.uc_stack.ss_size = kStackBytes;
    ::makecontext(&own_, &Context::begin, 0);
  }
#if defined(RONDE_THREAD_SANITIZER)
  ~Context() {
    __tsan_destroy_fiber(tsan_own_);
  }
#endif

  RONDE_SWITCHES void resume() {
    resumed_ = this;
    state_.swap_with_thread();
#if defined(RONDE_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(&asan_thread_, stack_.bottom(), kStackBytes);
#elif defined(RONDE_THREAD_SANITIZER)
    tsan_thread_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_own_, 0);
#endif
    ::swapcontext(&thread_, &own_);
#if defined(RONDE_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(asan_thread_, nullptr, nullptr);
#endif
    state_.swap_with_thread();
  }

  RONDE_SWITCHES void suspend() {
#if defined(RONDE_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(has_returned_ ? nullptr : &asan_own_, thread_bottom_,
                                   thread_bytes_);
#elif defined(RONDE_THREAD_SANITIZER)
    __tsan_switch_to_fiber(tsan_thread_, 0);
#endif
    ::swapcontext(&own_, &thread_);
    enter();
  }

  bool has_returned() const noexcept {
    return has_returned_;
  }

 private:
  static void begin() {
    Context& own = *resumed_;
    own.enter();
    own.function_();
    own.has_returned_ = true;
    own.suspend();
  }

  void enter() {
#if defined(RONDE_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(asan_own_, &thread_bottom_, &thread_bytes_);
#endif
  }

  static inline Context* resumed_ = nullptr;

  const std::function<void()> function_;
  bool has_returned_ = false;
  ThreadState state_;  ///< of the fiber, or, while that runs, of the thread
  ucontext_t own_ = {}, thread_ = {};
  const Stack stack_;
#if defined(RONDE_ADDRESS_SANITIZER)
  void *asan_own_ = nullptr, *asan_thread_ = nullptr;
  const void* thread_bottom_ = nullptr;
  std::size_t thread_bytes_ = 0;
#elif defined(RONDE_THREAD_SANITIZER)
  void* const tsan_own_ = __tsan_create_fiber(0);
  void* tsan_thread_ = nullptr;
#endif
};

Fiber::Fiber(std::function<void()> function)
    : context_(std::make_unique<Context>(std::move(function))) {}

Fiber::~Fiber() = default;

void Fiber::resume() {
  context_->resume();
}

void Fiber::suspend() {
  context_->suspend();
}

bool Fiber::has_returned() const noexcept {
  return context_->has_returned();
}

}  // namespace ronde

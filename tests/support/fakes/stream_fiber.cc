// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fakes/stream_fiber.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#include <ucontext.h>

#include <array>
#include <utility>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}

// Functions that switch between a thread and a fiber must not be seen themselves.
#define RONDE_UNSEEN __attribute__((no_sanitize("thread"), noinline))

namespace ronde::test::fake {
namespace {

thread_local int hidden = 0;  ///< how often the code that runs on this thread is

RONDE_UNSEEN void hide_accesses() {
  AnnotateIgnoreReadsBegin("", 0);
  AnnotateIgnoreWritesBegin("", 0);
}

RONDE_UNSEEN void show_accesses() {
  AnnotateIgnoreWritesEnd("", 0);
  AnnotateIgnoreReadsEnd("", 0);
}

}  // namespace

RONDE_UNSEEN void hide() {
  if (hidden++ > 0) return;
  hide_accesses();
  AnnotateIgnoreSyncBegin("", 0);
}

RONDE_UNSEEN void show() {
  if (--hidden > 0) return;
  AnnotateIgnoreSyncEnd("", 0);
  show_accesses();
}

RONDE_UNSEEN void release(const void* token) {
  if (hidden > 0) AnnotateIgnoreSyncEnd("", 0);
  __tsan_release(const_cast<void*>(token));
  if (hidden > 0) AnnotateIgnoreSyncBegin("", 0);
}

RONDE_UNSEEN void acquire(const void* token) {
  if (hidden > 0) AnnotateIgnoreSyncEnd("", 0);
  __tsan_acquire(const_cast<void*>(token));
  if (hidden > 0) AnnotateIgnoreSyncBegin("", 0);
}

/// It has a stack of its own: frames of threads lie elsewhere.
struct Fiber::Context {
  RONDE_UNSEEN static void serve() {
    Context& own = *entered;
    for (;;) {
      acquire(own.work);
      const bool hides = own.is_hidden;
      if (hides) hide_accesses();
      own.is_over = (*own.work)();
      if (hides) show_accesses();
      release(&own);
      __tsan_switch_to_fiber(own.thread, __tsan_switch_to_fiber_no_sync);
      swapcontext(&own.here, &own.caller);
    }
  }

  static inline thread_local Context* entered = nullptr;
  void* const fiber = __tsan_create_fiber(0);
  void* thread = nullptr;  ///< as ThreadSanitizer calls it
  const Work* work = nullptr;
  bool is_hidden = false, is_over = false;
  ucontext_t here = {}, caller = {};
  std::array<char, 1 << 18> stack;
};

Fiber::Fiber() : context_(new Context) {
  __tsan_set_fiber_name(context_->fiber, "a stream");
  getcontext(&context_->here);
  context_->here.uc_stack.ss_sp = context_->stack.data();
  context_->here.uc_stack.ss_size = context_->stack.size();
  makecontext(&context_->here, &Context::serve, 0);
}

Fiber::~Fiber() {
  __tsan_destroy_fiber(context_->fiber);
}

RONDE_UNSEEN bool Fiber::run(const Work& work) {
  Context& own = *context_;
  const int outer = std::exchange(hidden, 0);
  own.work = &work;
  own.thread = __tsan_get_current_fiber();
  Context::entered = &own;
  __tsan_switch_to_fiber(own.fiber, __tsan_switch_to_fiber_no_sync);
  swapcontext(&own.caller, &own.here);
  hidden = outer;
  return own.is_over;
}

void Fiber::order_before_caller() const {
  acquire(context_.get());
}

void Fiber::hide() {
  context_->is_hidden = true;
}

}  // namespace ronde::test::fake
#endif

// SPDX-License-Identifier: Apache-2.0
#include "core/src/base/caller.h"

#include <pthread.h>

#include <atomic>
#include <system_error>

namespace ronde {
namespace {

std::atomic<int> depth{0};

}  // namespace

int fork_depth() {
  static const int kError =
      pthread_atfork(nullptr, nullptr, [] { depth.fetch_add(1, std::memory_order_relaxed); });
  if (kError != 0) {
    throw Error("pthread_atfork() failed: " + std::generic_category().message(kError));
  }
  return depth.load(std::memory_order_relaxed);
}

UsageError error_after_fork(const std::string& what) {
  return UsageError(what +
                    " was called in a child of fork(): the group is that of its parent, which goes "
                    "on. A child that needs Ronde is forked before ronde::init(), or calls exec()");
}

UsageError error_of_shutdown_in_callback() {
  return UsageError(
      "shutdown() was called in a callback of an operation, which it would wait for: call it where "
      "the program ends");
}

}  // namespace ronde

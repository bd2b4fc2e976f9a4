// SPDX-License-Identifier: Apache-2.0
#include "core/src/base/thread_scope.h"

namespace ronde {
namespace {

thread_local bool is_loop = false;

}  // namespace

bool is_loop_thread() noexcept {
  return is_loop;
}

void note_loop_thread() noexcept {
  is_loop = true;
}

UsageError error_of_shutdown_in_callback() {
  return UsageError(
      "shutdown() was called in a callback of an operation, which it would wait for: call it where "
      "the program ends");
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "c_api/src/handle_table.h"

#include "core/src/base/caller.h"

namespace ronde::c {
namespace {

/// Before the mutex of a table is asked for: Note [After fork].
void expect_own_process(const char* function) {
  static const int depth = fork_depth();
  if (fork_depth() != depth) throw error_after_fork(function);
}

}  // namespace

WorkTable& works() {
  static auto* const table = new WorkTable("the work");
  expect_own_process("a function of works");
  return *table;
}

PersistentTable& persistent_operations() {
  static auto* const table = new PersistentTable("the persistent operation");
  expect_own_process("a function of persistent operations");
  return *table;
}

}  // namespace ronde::c

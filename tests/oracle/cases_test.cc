// SPDX-License-Identifier: Apache-2.0
// The rows of the table whose ranks are threads.
#include "backends/shm/shm.h"
#include "table.h"
#include "tests/support/case_table.h"
#include "tests/support/ranks.h"

namespace ronde::test {
namespace {

void run_row(const Row& row) {
  const inproc::Group group(row.size);
  run_ranks(row.size, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.cpu_backend = row.backend;
    options.backends["shm"] = shm_backend_factory({.slot_bytes = 4096});
    Runtime runtime(std::move(options));
    const std::string wrong = outcome_of(row, runtime, make_set(runtime, row.members));
    check(wrong.empty(), "rank " + std::to_string(rank) + ": " + wrong);
    runtime.shutdown();
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const char* const backend : {"inproc", "shm"}) {
    for (const Row& row : rows_on(backend)) {
      add_case(name_of(row), "", [row] { run_row(row); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test

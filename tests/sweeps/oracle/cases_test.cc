// SPDX-License-Identifier: Apache-2.0
// The rows of the table, on ranks that are threads.
#include "backends/shm/shm.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/oracle/table.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

void check_rows(const std::string& backend, int size) {
  const Table table(backend, size);
  std::vector<Table::Outcomes> outcomes(static_cast<std::size_t>(size));
  const inproc::Group group(size);
  run_ranks(size, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.cpu_backend = backend;
    options.backends["shm"] = shm_backend_factory({.slot_bytes = 4096});
    Runtime runtime(std::move(options));
    outcomes[static_cast<std::size_t>(rank)] = table.run(runtime, rank == 0);
    runtime.shutdown();
  });
  table.check(outcomes);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const std::string backend : {"inproc", "shm"}) {
    for (int size = 1; size <= 5; ++size) {
      add_case("all rows on " + backend + " of " + std::to_string(size), "",
               [=] { check_rows(backend, size); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
// Every collective x element type x op x number of ranks x process set x in place or not, on ranks
// that are threads. On processes: tests/jobs/process_sets_test.cc.
#include <numeric>

#include "backends/shm/shm.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/oracle/forms.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

/// All ranks, all backward, and some.
std::vector<std::vector<int>> sets_of(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::vector<int>> sets = {ranks, {ranks.rbegin(), ranks.rend()}, ranks};
  std::erase(sets.back(), size - 2);
  if (size < 3) sets.resize(static_cast<std::size_t>(size));
  return sets;
}

void check_rows(const std::string& backend, int size, DataType dtype) {
  const inproc::Group group(size);
  run_ranks(size, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.cpu_backend = backend;
    options.backends["shm"] = shm_backend_factory({.slot_bytes = 4096});
    Runtime runtime(std::move(options));
    for (const std::vector<int>& ranks : sets_of(size)) {
      const ProcessSet set = runtime.add_process_set(ranks);
      const auto own = runtime.rank_in(set);
      if (!own) continue;
      const std::string wrong = run_rows(dtype, runtime, {set, ranks, *own});
      check(wrong.empty(), "on " + std::to_string(ranks.size()) + " ranks: " + wrong);
    }
    runtime.shutdown();
  });
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const std::string backend : {"inproc", "shm"}) {
    for (int size = 1; size <= 5; ++size) {
      for (const DataType dtype : kAllDataTypes) {
        add_case("collectives of " + std::string(to_string(dtype)) + " on " + backend + " of " +
                     std::to_string(size),
                 "", [=] { check_rows(backend, size, dtype); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace ronde::test

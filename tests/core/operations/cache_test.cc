// SPDX-License-Identifier: Apache-2.0
// The response cache in whole runtimes: steady states that hit it, names that never do.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

void sum_named(Runtime& runtime, ProcessSet set, const std::string& name) {
  std::vector<float> values(3, 1.0F);
  Request request = sum_request(values, name);
  request.set = set;
  request.caller_waits = true;
  runtime.submit(request).wait();
  check(values[2] == 2.0F, "the sum '" + name + "'");
}

void check_warning(const std::string& text, const std::string& whose) {
  const std::string begin =
      "[ronde rank 0] warning: operations" + whose + " leave the response cache";
  check(occurrences(text, begin) == 1, "one warning of rank 0 in: " + text);
}

}  // namespace

TEST_CASE("ten thousand names evict each other, with one warning for each set") {
  Config config = test_config();
  config.log_level = "warning";
  const CapturedErrors errors;
  run_group(
      2,
      [](int rank, Runtime& runtime) {
        const ProcessSet set = runtime.add_process_set({1, 0});
        for (int step = 0; step < 10'000; ++step) {
          sum_named(runtime, kGlobalSet, "loss " + std::to_string(step));
          sum_named(runtime, set, "part " + std::to_string(step));
        }
        // They hit again once their names repeat.
        for (int step = 0; step < 10; ++step) sum_named(runtime, set, "the same");
        check(counter_of(runtime, "response_cache of set 1", "hits") >= 9, "the cache still works");
        if (rank != 0) return;
        const std::uint64_t kept = runtime.config().cache_capacity;
        check(counter_of(runtime, "negotiation", "evictions") == 10'000 - kept, "evictions");
      },
      config);
  const std::string text = errors.text();
  check_warning(text, "");
  check_warning(text, " of process set 1");
  check_contains(text, "Give an operation the same name, or none, in every step");
  check_contains(text, "allreduce 'loss ");
  check(occurrences(text, "\n") == 2, "and nothing else in: " + text);
}

TEST_CASE("operations without a name that are alike on one rank alone hit the cache") {
  for (const std::uint64_t freeze_after_steps : {0U, 3U}) {
    Config config = test_config();
    config.freeze_after_steps = freeze_after_steps;
    const auto body = [&](int rank, Runtime& runtime) {
      for (int step = 0; step < 30; ++step) {
        for (const std::size_t more : {0U, 1U}) {
          const std::size_t rows = rank == 0 ? 2 : 2 + more;
          std::vector<float> mine(rows, static_cast<float>(10 * step + rank));
          std::vector<float> all(4 + more);
          Request request = sum_request(mine, "");
          request.kind = Collective::Allgather;
          request.output = all.data();
          request.caller_waits = true;
          runtime.submit(request).wait();
          check(all[1] == static_cast<float>(10 * step), "of rank 0");
          check(all.back() == static_cast<float>(10 * step + 1), "of rank 1");
        }
      }
      const bool has_schedule = std::ranges::any_of(
          runtime.stats(), [](const StatsGroup& group) { return group.part == "schedule"; });
      check(has_schedule == (freeze_after_steps > 0), "a schedule only where one may freeze");
      if (rank > 0 || freeze_after_steps > 0) return;
      check(counter_of(runtime, "negotiation", "agreed_in_full") == 2, "in the first step");
      check(counter_of(runtime, "negotiation", "agreed_by_slot") == 58, "in all others");
    };
    run_group(2, body, config);
  }
}

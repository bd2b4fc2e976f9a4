// SPDX-License-Identifier: Apache-2.0
// The C and the C++ interface in one process serve one group.
#include <catch2/catch.hpp>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "ronde/ronde_c.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/requests.h"

// Each case has a process of its own: MPI starts once, and hooks and counters stay.

namespace {

using Catch::Contains;

int start_sum(const char* name, float& value, ronde_work* work) {
  ronde_tensor tensor = RONDE_TENSOR_INIT;
  const std::int64_t one = 1;
  tensor.data = &value;
  tensor.shape = &one;
  tensor.dims = 1;
  tensor.dtype = RONDE_F32;
  ronde_operation_options options = RONDE_OPERATION_OPTIONS_INIT;
  options.name = name;
  return ronde_allreduce(&tensor, &tensor, &options, work);
}

void count_and_throw(void* calls, int) {
  ++*static_cast<int*>(calls);
  throw 7;
}

/// Sums through C on some ranks and through C++ on the others.
void sum_both_ways(bool in_c) {
  std::vector<float> values = {static_cast<float>(ronde::rank() + 1)};
  if (in_c) {
    ronde_work work = nullptr;
    REQUIRE(start_sum("both", values[0], &work) == RONDE_OK);
    REQUIRE(ronde_work_wait(work, -1) == RONDE_OK);
    REQUIRE(ronde_work_free(work) == RONDE_OK);
  } else {
    ronde::run(ronde::test::sum_request(values, "both"));
  }
  CHECK(values[0] == static_cast<float>(ronde::size() * (ronde::size() + 1)) / 2);
}

}  // namespace

TEST_CASE("what C++ starts C uses and ends", "[own]") {
  ronde::init();
  CHECK(ronde_is_initialized() == 1);
  int rank = -1;
  CHECK(ronde_rank(RONDE_ALL_RANKS, &rank) == RONDE_OK);
  CHECK(rank == ronde::rank());
  sum_both_ways(true);
  sum_both_ways(rank % 2 == 0);
  sum_both_ways(rank % 2 == 1);
  int size = 0;
  CHECK(ronde_size(ronde::add_process_set({0}).id, &size) == RONDE_OK);
  CHECK(size == 1);
  CHECK(ronde_init(nullptr) == RONDE_E_USAGE);
  CHECK(ronde_shutdown() == RONDE_OK);
  CHECK_FALSE(ronde::is_initialized());
}

TEST_CASE("a callback that throws harms no group", "[own]") {
  ronde::init();
  float values[] = {1, 1};
  ronde_work works[] = {nullptr, nullptr};
  ronde_work group = nullptr;
  int calls = 0;
  const ronde::test::CapturedErrors log;
  REQUIRE(ronde_group_begin(RONDE_ALL_RANKS) == RONDE_OK);
  for (int i = 0; i < 2; ++i) REQUIRE(start_sum("twice", values[i], &works[i]) == RONDE_OK);
  CHECK(ronde_work_on_done(works[0], count_and_throw, &calls) == RONDE_OK);
  CHECK(ronde_group_end(&group) == RONDE_E_DUPLICATE_NAME);
  CHECK(calls == 1);
  for (const ronde_work work : works) {
    CHECK(ronde_work_wait(work, -1) == RONDE_E_DUPLICATE_NAME);
    CHECK(ronde_work_free(work) == RONDE_OK);
  }
  CHECK_THAT(log.text(), Contains("error: a callback of a work threw, which it must not"));
  sum_both_ways(true);
  ronde::shutdown();
}

// Nobody can ask for its error.
TEST_CASE("a freed work that fails with its group is logged, unless that was cancelled", "[own]") {
  ronde::init();
  const ronde::test::CapturedErrors log;
  static const auto begin = [](const char* kept, const char* freed) {
    static float values[] = {1, 1};
    ronde_work works[] = {nullptr, nullptr};
    CHECK(ronde_group_begin(RONDE_ALL_RANKS) == RONDE_OK);
    CHECK(start_sum(kept, values[0], &works[0]) == RONDE_OK);
    CHECK(start_sum(freed, values[1], &works[1]) == RONDE_OK);
    CHECK(ronde_work_free(works[1]) == RONDE_OK);
    return works[0];
  };
  CHECK(ronde_work_free(begin("kept", "cancelled")) == RONDE_OK);
  CHECK(ronde_group_cancel() == RONDE_OK);
  CHECK(log.text().empty());
  ronde_work kept[] = {nullptr, nullptr};
  std::thread([&] { kept[0] = begin("kept", "of a thread"); }).join();
  ronde_work done = nullptr;
  CHECK(ronde_barrier(nullptr, &done) == RONDE_OK);
  CHECK(ronde_work_wait(done, -1) == RONDE_OK);
  const auto leave_open = [](void* work, int) {
    *static_cast<ronde_work*>(work) = begin("kept", "of a callback");
  };
  CHECK(ronde_work_on_done(done, leave_open, &kept[1]) == RONDE_OK);  // at once
  CHECK(ronde_work_free(done) == RONDE_OK);
  const std::string failed = " failed and nobody asked: the ";
  CHECK_THAT(log.text(), Contains("warning: allreduce 'of a thread'" + failed + "thread that") &&
                             Contains("warning: allreduce 'of a callback'" + failed + "callback") &&
                             !Contains("kept"));
  for (const ronde_work work : kept) {
    CHECK(ronde_work_wait(work, -1) == RONDE_E_USAGE);
    CHECK(ronde_work_free(work) == RONDE_OK);
  }
  ronde::shutdown();
}

TEST_CASE("what C++ code throws does not get through C", "[own]") {
  ronde::init();
  ronde::default_runtime().add_stats(
      []() -> ronde::StatsGroup { throw std::runtime_error("no counters today"); });
  char text[64] = "untouched";
  CHECK(ronde_stats_json(text, sizeof(text)) == RONDE_E_INTERNAL);
  CHECK_THAT(ronde_last_error(), Contains("ronde_stats_json: no counters today"));
  CHECK(std::string(text) == "untouched");
  ronde::shutdown();
}

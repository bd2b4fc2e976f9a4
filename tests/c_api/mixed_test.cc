// SPDX-License-Identifier: Apache-2.0
// The C and the C++ interface in one process serve one group.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "ronde/ronde_c.h"
#include "tests/support/fakes/fake_device.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/requests.h"

// Each case has a process of its own: MPI starts once, and hooks and counters stay.

namespace {

using Catch::Contains;

int start_sum(const char* name, std::vector<float>& values, ronde_work* work) {
  ronde_tensor tensor = RONDE_TENSOR_INIT;
  const auto count = static_cast<std::int64_t>(values.size());
  tensor.data = values.data();
  tensor.shape = &count;
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
    REQUIRE(start_sum("both", values, &work) == RONDE_OK);
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
  CHECK(ronde_init(nullptr) == RONDE_E_USAGE);
  CHECK(ronde_shutdown() == RONDE_OK);
  CHECK_FALSE(ronde::is_initialized());
  CHECK_THROWS_AS(ronde::rank(), ronde::NotInitializedError);
}

TEST_CASE("what C starts C++ uses and ends", "[own]") {
  REQUIRE(ronde_init(nullptr) == RONDE_OK);
  sum_both_ways(ronde::rank() % 2 == 0);
  const ronde::ProcessSet set = ronde::add_process_set({0});
  int size = 0;
  CHECK(ronde_size(set.id, &size) == RONDE_OK);
  CHECK(size == 1);
  ronde::shutdown();
  CHECK(ronde_is_initialized() == 0);
  CHECK(ronde_rank(RONDE_ALL_RANKS, &size) == RONDE_E_NOT_INITIALIZED);
}

TEST_CASE("a callback that throws harms no group", "[own]") {
  ronde::init();
  std::vector<float> values[] = {{1}, {1}};
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

TEST_CASE("what C++ code throws does not get through C", "[own]") {
  ronde::init();
  ronde::default_runtime().add_stats(
      []() -> ronde::StatsGroup { throw std::runtime_error("no counters today"); });
  char text[64] = "untouched";
  CHECK(ronde_stats_json(text, sizeof(text)) == RONDE_E_INTERNAL);
  CHECK_THAT(ronde_last_error(), Contains("ronde_stats_json: no counters today"));
  CHECK(std::string(text) == "untouched");
  ronde::shutdown();
  ronde::add_init_hook([](ronde::Runtime&) { throw std::runtime_error("hook failed"); });
  ronde_init_options options = {};
  options.struct_size = sizeof(options);
  options.size = 1;
  CHECK(ronde_init(&options) == RONDE_E_INTERNAL);
  CHECK_THAT(ronde_last_error(), Contains("ronde_init: hook failed"));
}

// A fake GPU, whose memory is the host's.
TEST_CASE("a result on cuda that does not fit is lost to its rank alone", "[own]") {
  const auto device = std::make_shared<ronde::test::FakeDevice>(0);
  ronde::register_backend("fake", ronde::test::fake_device_factory(device));
  REQUIRE(setenv("RONDE_GPU_BACKEND", "fake", 1) == 0);
  ronde::init();
  const bool lacks = ronde::rank() == 0;
  const auto ranks = static_cast<std::size_t>(ronde::size());
  const std::vector<float> rows(2 * ranks, 1);
  const auto count = static_cast<std::int64_t>(rows.size());
  ronde_tensor in = RONDE_TENSOR_INIT;
  in.data = const_cast<float*>(rows.data());
  in.shape = &count;
  in.dims = 1;
  in.dtype = RONDE_F32;
  in.device = 0;
  in.stream = ronde::test::FakeDevice::stream('A');
  const auto check = [&](auto* start, std::size_t result_count, float value) {
    std::vector<float> result(result_count + 4, -5);
    ronde_tensor out = in;
    out.data = result.data();
    out.capacity = static_cast<std::int64_t>(result_count - (lacks ? 1 : 0));
    ronde_work work = nullptr;
    REQUIRE(start(&in, &out, nullptr, &work) == RONDE_OK);
    CHECK(ronde_work_wait(work, -1) == (lacks ? RONDE_E_TOO_SMALL : RONDE_OK));
    CHECK(ronde_work_free(work) == RONDE_OK);
    std::vector<float> expected(result_count + 4, -5);
    if (!lacks) std::fill_n(expected.begin(), result_count, value);
    CHECK(result == expected);
  };
  check(ronde_allgather, ranks * rows.size(), 1);
  check(ronde_alltoall, rows.size(), 1);
  check(ronde_reducescatter, 2, static_cast<float>(ranks));
  sum_both_ways(true);
  ronde::shutdown();
}

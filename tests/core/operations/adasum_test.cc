// SPDX-License-Identifier: Apache-2.0
// Adasum on whole runtimes, against the same in double precision: see Note [Adasum]. Fused, cached,
// and where ranks add nothing: tests/sweeps/fuzz/random_programs_test.cc.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/support/oracle/forms.h"
#include "tests/support/ranks/faulty_group.h"
#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Under sanitizers numbers of ranks with an odd one, and with none: a minute less.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSizes[] = {3, 4};
#else
constexpr int kSizes[] = {1, 2, 3, 4, 5, 6, 7};
#endif

/// Every type and wire type, sizes of which some do not fit into the scratch, in place and not.
std::string wrong_rows(int rank, Runtime& runtime) {
  std::string wrong;
  for (Row row : std::vector<Row>{{.dtype = DataType::F16},
                                  {.dtype = DataType::BF16},
                                  {.dtype = DataType::F32},
                                  {.dtype = DataType::F32, .wire_dtype = DataType::F16},
                                  {.dtype = DataType::F64},
                                  {.dtype = DataType::F64, .wire_dtype = DataType::BF16}}) {
    row.op = ReduceOp::Adasum;
    for (const std::size_t width : {0, 1, 7, 3001}) {
      row.width = width;
      row.in_place = width == 7;
      row.prescale = width == 1 ? 0.3 : 1.0;
      row.postscale = width == 1 ? -1.7 : 1.0;
      wrong += run_row(row, runtime, {kGlobalSet, runtime.ranks_of(kGlobalSet), rank});
    }
  }
  return wrong;
}

/// One allreduce in place of what each rank brings: f32 [3].
std::vector<float> adasum_of_three(Runtime& runtime, std::vector<float> values) {
  Request request = sum_request(values, "three");
  request.op = ReduceOp::Adasum;
  runtime.submit(request).wait();
  return values;
}

using Rows = std::vector<std::vector<float>>;

/// Returns the adasum of `rows`, one per rank.
std::vector<float> adasum_of_rows(const Rows& rows) {
  Rows results(rows.size());
  run_group(static_cast<int>(rows.size()), [&](int rank, Runtime& runtime) {
    const auto own = static_cast<std::size_t>(rank);
    results[own] = adasum_of_three(runtime, rows[own]);
  });
  for (const auto& result : results) {
    CHECK(std::memcmp(result.data(), results[0].data(), 3 * sizeof(float)) == 0);
  }
  return results[0];
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("adasum matches double precision in a scratch of any size") {
  for (const int size : kSizes) {
    for (const std::uint64_t fusion_bytes : {std::uint64_t{64} << 20, std::uint64_t{8192}}) {
      Config config = test_config();
      config.fusion_bytes = fusion_bytes;
      const auto body = [](int rank, Runtime& runtime) {
        check_equal(wrong_rows(rank, runtime), "", "what is wrong");
      };
      run_group(size, body, config);
    }
  }
}

TEST_CASE(
    "adasum adds what is orthogonal or zero, averages what is equal, scales with its inputs") {
  const std::vector<float> zero(3);
  const std::pair<Rows, std::vector<float>> cases[] = {
      {{{1, 0, 0}, {0, 2, 0}}, {1, 2, 0}},
      {{{1, 0, 0}, {0, 2, 0}, {0, 0, 3}}, {1, 2, 3}},
      // a.b = 2, a.a = 4, b.b = 2: 3/4 a + 1/2 b.
      {{{2, 0, 0}, {1, 1, 0}}, {2, 0.5F, 0}},
      // Two levels, and the third rank goes up by itself: ((1 - 1/2) 8 + (1 - 1/2) 8 = 8) with 4.
      {{{8, 0, 0}, {8, 0, 0}, {4, 0, 0}}, {6, 0, 0}},
      {{zero, zero}, zero},
      {{zero, {1, 2, 3}}, {1, 2, 3}},
      {{{1, 2, 3}, zero, zero}, {1, 2, 3}},
      {{zero, {1, kInfinity, 3}}, {1, kInfinity, 3}}};
  for (const auto& [rows, expected] : cases) CHECK(adasum_of_rows(rows) == expected);
  for (const std::size_t size : {1U, 2U, 3U, 5U, 7U}) {
    CHECK(adasum_of_rows(Rows(size, {1.25F, -3, 0.1F})) == std::vector<float>{1.25F, -3, 0.1F});
  }
  // All ranks get equal bits, also where the tree is not whole.
  Rows rows;
  for (float rank = 1; rank <= 7; ++rank) {
    rows.push_back({0.3F * rank, -7 / rank, 1 + rank});
    adasum_of_rows(rows);
  }
  rows = {{0.3F, -7, 1}, {5, 0.7F, -2}, {1, 1, 3}};
  std::vector<float> once = adasum_of_rows(rows);
  for (auto& row : rows) {
    for (float& value : row) value *= 0x1p-90F;
  }
  for (float& value : once) value *= 0x1p-90F;
  CHECK(adasum_of_rows(rows) == once);
  // Factors beyond the range of f32: that of the first is 1 - 1e-38 * 1e30 / 2e-76, about -5e67.
  const auto extreme = adasum_of_rows({{1e-38F, 0, 0}, {1e30F, 0, 0}});
  CHECK(extreme[0] == Approx(5e29).epsilon(1e-6));
}

TEST_CASE("a NaN or infinity among numbers makes all of an adasum the one quiet NaN") {
  const float nan = std::nanf("");
  for (const Rows& rows : {Rows{{nan, 1, 1}, {1, 2, 3}}, Rows{{1, 1, 1}, {1, 2, -kInfinity}},
                           Rows{{1, 1, 1}, {2, 1, 1}, {nan, 0, 0}},
                           Rows{{1, 1, 1}, {kInfinity, 0, 0}, {0, 0, 0}, {3, 1, 2}}}) {
    for (const float value : adasum_of_rows(rows)) {
      CHECK(std::bit_cast<std::uint32_t>(value) == 0x7fc00000U);
    }
  }
}

TEST_CASE("a NaN in one tensor of a fused bucket leaves the others alone") {
  Config config = test_config();
  config.cycle_time_ms = 10000.0;
  const auto body = [](int rank, Runtime& runtime) {
    for (int step = 0; step < 2; ++step) {
      std::vector<float> bad(9, rank == 1 ? std::nanf("") : 1.0F);
      std::vector<float> good(9, 2.0F);
      Request first = sum_request(bad, "bad");
      Request second = sum_request(good, "good");
      first.op = second.op = ReduceOp::Adasum;
      const Work works[] = {runtime.submit(first), runtime.submit(second)};
      for (const Work& work : works) work.wait();
      check(std::isnan(bad[8]) && good == std::vector<float>(9, 2.0F), "one of two is NaN");
    }
    check(counter_of(runtime, "execution", "fused_tensors") > 0, "they were fused");
  };
  run_group(3, body, config);
}

TEST_CASE("what adasum is not for is refused at submission") {
  run_group(2, [](int, Runtime& runtime) {
    std::vector<float> memory(2, 1.0);
    const auto check_refused = [&](const std::function<void(Request&)>& change,
                                   const std::string& text) {
      Request request = sum_request(memory, "x");
      request.op = ReduceOp::Adasum;
      change(request);
      check_contains(text_of<UsageError>([&] { runtime.submit(request); }), text);
    };
    for (const DataType dtype : kAllDataTypes) {
      if (is_floating(real_type(dtype))) continue;
      check_refused([&](Request& request) { request.dtype = dtype; },
                    "allreduce 'x': adasum of " + std::string(to_string(dtype)));
    }
    check_refused([](Request& request) { request.kind = Collective::Reducescatter; },
                  "reducescatter 'x': adasum is for allreduces");
    check_refused([](Request& request) { request.symmetric = true; },
                  "adasum of a symmetric buffer");
    check_refused([](Request& request) { request.prescale = -kInfinity; },
                  "adasum needs a finite prescale");
    check_refused([](Request& request) { request.op = static_cast<ReduceOp>(kReduceOpCount); },
                  "op or device is none that there is");
    check_goes_on(runtime);
  });
}

TEST_CASE("a rank that fails in any step of an adasum ends the group on all") {
  // Three ranks need an alltoall, two levels and a gather.
  constexpr int kSteps = 4;
  for (int step = 1; step <= kSteps; ++step) {
    for (const bool at_start : {true, false}) {
      CAPTURE(step, at_start);
      FaultyGroup group(3);
      const std::string text = "broken in step " + std::to_string(step);
      run_ranks(3, [&](int rank) {
        Runtime runtime(group.options(rank));
        Faults& faults = *group.faults[static_cast<std::size_t>(rank)];
        adasum_of_three(runtime, {1, 2, 3});
        const int before = faults.begun();
        adasum_of_three(runtime, {1, 2, 3});
        check(faults.begun() - before == kSteps, "as many operations of the backend");
        if (rank == 1 && at_start) faults.fail_start(step, text);
        if (rank == 1 && !at_start) faults.fail_poll(step, text);
        const Death death = death_of([&] { adasum_of_three(runtime, {1, 2, 3}); });
        check(death.rank == 1, "rank 1 failed");
        check_contains(death.text, text);
      });
    }
  }
}

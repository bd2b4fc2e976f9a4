// SPDX-License-Identifier: Apache-2.0
// Alltoall on whole runtimes; its types, forms and sizes are those of the oracle
// (tests/sweeps/oracle and tests/jobs/collectives_test.cc), also among others that overlap
// (tests/sweeps/fuzz).
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <latch>
#include <limits>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::int64_t kColumns = 3;
using Rows = std::vector<std::int64_t>;

/// A result of f32 whose memory is allocated once its shape is known.
struct Allocated {
  std::function<void*(const Rows&)> allocator() {
    return [this](const Rows& result_shape) {
      check(!elements, "the output is allocated once");
      shape = result_shape;
      elements.emplace(static_cast<std::size_t>(shape[0] * kColumns));
      return elements->data();
    };
  }

  Rows shape;
  std::optional<std::vector<float>> elements;
};

/// Named "x".
Request alltoall_request(std::vector<float>& values, const Rows& shape, const Rows& splits,
                         Allocated& output) {
  Request request = sum_request(values, "x");
  request.kind = Collective::Alltoall;
  request.shape = shape;
  request.splits = splits;
  request.output = nullptr;
  request.allocate_output = output.allocator();
  return request;
}

/// How many rows each rank sends to each.
struct Division {
  std::string name;
  bool is_even;  ///< splits are left out
  std::function<std::int64_t(int from, int to)> sent;
};

const std::array<Division, 6> kDivisions = {{
    {"even", true, [](int, int) { return 2; }},
    {"uneven", false, [](int from, int to) { return (from * 3 + to * 2) % 5; }},
    {"many", false, [](int from, int to) { return 40 * from + 7 * to + 1; }},
    {"all to the last", false, [](int from, int to) { return to == 2 ? from : 0; }},
    {"one sends", false, [](int from, int to) { return from == 1 ? to + 1 : 0; }},
    {"nothing", false, [](int, int) { return 0; }},
}};

/// Appends what goes from one rank to another, which tells all pairs apart, and its rows.
void append_sent(const Division& division, int from, int to, std::vector<float>& elements,
                 Rows& rows) {
  rows.push_back(division.sent(from, to));
  for (std::int64_t i = 0; i < rows.back() * kColumns; ++i) {
    elements.push_back(static_cast<float>(10'000 * from + 1000 * to + i));
  }
}

/// Into memory of its own, or in place: to the begin of memory in which the input lies `shift`
/// elements further.
void exchange(const Division& division, const std::string& name, int rank, Runtime& runtime,
              std::optional<std::size_t> shift = {}) {
  std::vector<float> input, expected;
  Rows splits, received;
  for (int other = 0; other < runtime.topology().size; ++other) {
    append_sent(division, rank, other, input, splits);
    append_sent(division, other, rank, expected, received);
  }
  const auto rows_of = [](const std::vector<float>& elements) {
    return static_cast<std::int64_t>(elements.size()) / kColumns;
  };
  Allocated output;
  Request request = alltoall_request(input, {rows_of(input), kColumns}, splits, output);
  request.name = name;
  if (division.is_even) request.splits.clear();
  std::vector<float> memory(shift.value_or(0));
  if (shift) {
    memory.insert(memory.end(), input.begin(), input.end());
    memory.resize(std::max(memory.size(), expected.size()));
    request.input = memory.data() + *shift;
    request.output = memory.data();
    request.allocate_output = nullptr;
  }
  const Work work = runtime.submit(std::move(request));
  work.wait();
  memory.resize(expected.size());
  check_equal(shift ? memory : output.elements.value(), expected, division.name);
  check_equal(work.received_splits(), received, "the received splits");
  if (!shift) check_equal(output.shape, Rows{rows_of(expected), kColumns}, "its shape");
}

/// An alltoall of [4, 3] between two ranks; `change` on those of `ranks` makes both fail alike.
void check_refused(const std::vector<int>& ranks, const std::function<void(Request&)>& change,
                   const std::string& expected) {
  std::array<std::string, 2> texts;
  run_group(2, [&](int rank, Runtime& runtime) {
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values(12, 1.0F);
      Allocated output;
      Request request = alltoall_request(values, {4, kColumns}, {1, 3}, output);
      const bool is_bad = std::ranges::count(ranks, rank) > 0;
      // Cached first, then refused, then as before.
      if (step == 1 && is_bad) change(request);
      const Work work = runtime.submit(std::move(request));
      if (step != 1) {
        work.wait();
        check(work.received_splits() == (rank == 0 ? Rows{1, 1} : Rows{3, 3}), "goes on");
        continue;
      }
      std::string& text = texts[static_cast<std::size_t>(rank)];
      text = usage_error_of(work);
      check(text_of<UsageError>([&] { work.received_splits(); }) == text,
            "a failed operation has no splits");
      check(!output.elements, "nothing was allocated");
    }
  });
  CHECK(texts[0] == texts[1]);
  CHECK_THAT(texts[0], Catch::Contains(expected));
}

}  // namespace

TEST_CASE("an alltoall that cannot be is refused on every rank with what each sent") {
  const auto splits = [](Rows given) { return [=](Request& request) { request.splits = given; }; };
  const auto shape = [](Rows given) { return [=](Request& request) { request.shape = given; }; };
  const auto even = [](Rows given) {
    return [=](Request& request) {
      request.splits = {};
      request.shape = given;
    };
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  check_refused({1}, splits({1, 2}),
                "alltoall 'x' is impossible:\n  rank 1: splits [1, 2] do not add up to the first "
                "dimension of [4, 3]");
  check_refused({0}, splits({1, 1, 2}), "rank 0: 3 splits were given for 2 ranks");
  check_refused({1}, splits({5, -1}), "rank 1: splits [5, -1] have a negative number");
  check_refused({1}, splits({kMost, kMost}), "do not add up");
  check_refused({0, 1}, splits({4}), "alltoall 'x': 1 splits were given for 2 ranks");
  check_refused({0, 1}, even({3, kColumns}),
                "alltoall 'x': the first dimension of [3, 3] cannot be divided evenly among 2 "
                "ranks; give splits");
  check_refused({1}, even({3, kColumns}), "rank 1: the first dimension of [3, 3]");
  check_refused({0, 1}, even({}), "a scalar has no first dimension to split along");
  check_refused({1}, even({}), "rank 1: alltoall f32 [] on cpu");
  check_refused({1}, shape({4, 1, 3}),
                "rank 1: alltoall f32 [*, 1, 3] with splits on cpu\n  rank 0: alltoall f32 "
                "[*, 3] with splits on cpu\nEvery rank must");
  check_refused({1}, shape({-4, 3}), "rank 1: shape [-4, 3] has a negative dimension");
  const auto integers = [](Request& request) { request.dtype = DataType::I32; };
  check_refused({1}, integers, "rank 1: alltoall i32 [*, 3] with splits on cpu");
}

TEST_CASE("rows that are too many together are refused on every rank") {
  for (const Collective kind : {Collective::Allgather, Collective::Alltoall}) {
    for (const Rows& shape : {Rows{std::int64_t{1} << 60}, Rows{std::int64_t{1} << 62, 0}}) {
      run_group(2, [&](int, Runtime& runtime) {
        float value = 0;
        Request request;
        request.kind = kind;
        request.shape = shape;
        request.input = &value;
        request.allocate_output = [](const Rows&) -> void* { throw UsageError("allocated"); };
        const std::string text = usage_error_of(runtime.submit(request));
        check_contains(text, "the rows of all ranks together: ");
        check_contains(text, shape.size() == 1 ? "\n  ranks 0,1: [1152921504606846976]"
                                               : "\n  ranks 0,1: [4611686018427387904, 0]");
      });
    }
  }
}

TEST_CASE("a rank that gave no memory for what the others bring fails alone") {
  for (const Collective kind : {Collective::Alltoall, Collective::Allgather}) {
    run_group(2, [kind](int rank, Runtime& runtime) {
      std::vector<float> values(2, 5.0F);
      for (const std::int64_t rows : {0, 2}) {
        std::vector<float> result(2);
        Request request;
        request.kind = kind;
        request.name = "x";
        request.shape = {rank == 0 ? rows : 0};
        if (kind == Collective::Alltoall) request.splits = {0, rank == 0 ? rows : 0};
        request.input = values.data();
        if (rank == 0) request.output = result.data();
        const Work work = runtime.submit(request);
        if (rank == 0 || rows == 0) {
          work.wait();
        } else {
          check_contains(usage_error_of(work),
                         "'x': rank 1 gave no memory for the result, which has the shape [2]");
        }
      }
      runtime.submit(sum_request(values, "goes on")).wait();
      check(values[0] == 10.0F, "the job goes on");
    });
  }
}

TEST_CASE("an alltoall may be in place and lie anywhere in its result") {
  Config config = test_config();
  config.fusion_bytes = 64;  // many chunks: the first ones overwrite the input
  const auto body = [](int rank, Runtime& runtime) {
    for (const Division& division : kDivisions) {
      for (const std::size_t shift : {0U, 1U, 50U}) exchange(division, "", rank, runtime, shift);
    }
  };
  run_group(3, body, config);
}

TEST_CASE("splits and rows that change from step to step hit the cache and freeze") {
  for (const std::uint64_t freeze_after_steps : {0U, 3U}) {
    Config config = test_config();
    config.freeze_after_steps = freeze_after_steps;
    const auto body = [&](int rank, Runtime& runtime) {
      for (int step = 0; step < 20; ++step) {
        const auto sent = [step](int from, int to) { return (from + 2 * to + step) % 4; };
        exchange({"step " + std::to_string(step), false, sent}, "x", rank, runtime);
      }
      if (freeze_after_steps == 0) {
        check_equal(counter_of(runtime, "response_cache", "hits"), std::uint64_t{19}, "hits");
        return;
      }
      check_equal(counter_of(runtime, "schedule", "freezes"), std::uint64_t{1}, "freezes");
      // Another rank may have shut down already.
      for (const char* const thaws : {"thaws_by_submission", "thaws_by_wait"}) {
        check_equal(counter_of(runtime, "schedule", thaws), std::uint64_t{0}, thaws);
      }
      check(counter_of(runtime, "schedule", "tensors") >= 10, "run by the schedule");
    };
    run_group(3, body, config);
  }
}

TEST_CASE("a rank without splits takes part in an alltoall of those that have some") {
  run_group(3, [](int rank, Runtime& runtime) {
    const auto sent = [](int from, int to) { return from == 1 ? 2 : from + to; };
    for (int step = 0; step < 3; ++step) {
      exchange({"mixed", rank == 1, sent}, "x", rank, runtime);
    }
    check_equal(counter_of(runtime, "response_cache", "hits"), std::uint64_t{2}, "hits");
  });
}

TEST_CASE("rows without elements are counted, and too many of them refused on every rank") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  run_group(2, [](int rank, Runtime& runtime) {
    for (const std::int64_t rows : {std::int64_t{3}, kMost}) {
      std::vector<float> none;
      Allocated output;
      const Work work = runtime.submit(alltoall_request(none, {rows, 0}, {1, rows - 1}, output));
      if (rows > 3) {
        check_contains(usage_error_of(work),
                       "alltoall 'x': a rank sends 9223372036854775806 rows to one rank");
        continue;
      }
      work.wait();
      check(work.received_splits() == (rank == 0 ? Rows{1, 1} : Rows{2, 2}), "its rows");
      check(output.shape == (rank == 0 ? Rows{2, 0} : Rows{4, 0}), "its shape");
    }
  });
}

TEST_CASE("the received splits are asked for too early, of nothing, and of another operation") {
  CHECK(Work().received_splits().empty());
  std::latch asked(1);
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    std::vector<float> received(2);
    Request request = sum_request(values, "x");
    request.kind = Collective::Alltoall;
    request.output = received.data();
    if (rank == 1) asked.wait();
    const Work work = runtime.submit(request);
    if (rank == 0) {
      check_contains(text_of<UsageError>([&] { work.received_splits(); }),
                     "alltoall 'x': received_splits() was called while it is pending");
      asked.count_down();
    }
    work.wait();
    check(work.received_splits() == Rows{1, 1}, "one row of each rank");
    const Work sums = runtime.submit(sum_request(values, "sum"));
    sums.wait();
    check(sums.received_splits().empty(), "an allreduce has none");
  });
}

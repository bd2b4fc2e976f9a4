// SPDX-License-Identifier: Apache-2.0
// Alltoall and reducescatter on whole runtimes, against an oracle in double precision.
#include <array>
#include <catch2/catch.hpp>
#include <latch>
#include <numeric>
#include <optional>

#include "ronde/error.h"
#include "tests/support/case_table.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"
#include "tests/unit/reduction_oracle.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::int64_t kColumns = 3;
using Rows = std::vector<std::int64_t>;

std::size_t index(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

/// The handle outlives the error's text: ThreadSanitizer does not see what orders the two ends of
/// an exception_ptr, but it sees the handle's.
std::string usage_error_of(const Work& work) {
  return text_of<UsageError>([&] { work.wait(); });
}

std::int64_t sum(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

/// A result whose memory is allocated once its shape is known.
struct Allocated {
  explicit Allocated(DataType type) : dtype(type) {}

  std::function<void*(const Rows&)> allocator() {
    return [this](const Rows& result_shape) {
      check(!elements, "the output is allocated once");
      shape = result_shape;
      elements.emplace(dtype, index(shape[0] * kColumns));
      return elements->data();
    };
  }

  DataType dtype;
  Rows shape;
  std::optional<Elements> elements;
};

Elements input_of(const Case& test, int rank, std::int64_t rows) {
  Elements input(test.dtype, index(rows * kColumns));
  for (std::size_t i = 0; i < input.count(); ++i) input.set(i, brought(test, rank, i));
  return input;
}

/// Who sends how many rows to whom.
struct Division {
  const char* name;
  bool is_even;  ///< splits are left out
  std::int64_t (*sent)(int from, int to);
};

constexpr std::array<Division, 6> kDivisions = {{
    {"even", true, [](int, int) { return std::int64_t{2}; }},
    {"uneven", false, [](int from, int to) { return std::int64_t{from * 3 + to * 2} % 5; }},
    {"many", false, [](int from, int to) { return std::int64_t{40 * from + 7 * to + 1}; }},
    {"all to the last", false, [](int from, int to) { return std::int64_t{to == 3 ? from : 0}; }},
    {"one sends", false, [](int from, int to) { return std::int64_t{from == 1 ? to + 1 : 0}; }},
    {"nothing", false, [](int, int) { return std::int64_t{0}; }},
}};

Rows splits_of(const Division& division, int from, int ranks) {
  Rows splits;
  for (int to = 0; to < ranks; ++to) splits.push_back(division.sent(from, to));
  return splits;
}

void exchange(const Case& test, const Division& division, const std::string& name, int rank,
              Runtime& runtime) {
  const Rows splits = splits_of(division, rank, test.ranks);
  Elements input = input_of(test, rank, sum(splits));
  Allocated output(test.dtype);
  Request request;
  request.kind = Collective::Alltoall;
  request.name = name;
  request.dtype = test.dtype;
  request.shape = {sum(splits), kColumns};
  if (!division.is_even) request.splits = splits;
  request.input = input.data();
  request.allocate_output = output.allocator();
  const Work work = runtime.submit(std::move(request));
  work.wait();
  check(output.elements.has_value(), "the output was allocated");
  Rows received;
  std::size_t position = 0;
  for (int from = 0; from < test.ranks; ++from) {
    const Rows theirs = splits_of(division, from, test.ranks);
    received.push_back(theirs[index(rank)]);
    const std::int64_t before =
        std::accumulate(theirs.begin(), theirs.begin() + rank, std::int64_t{0});
    for (std::int64_t i = 0; i < received.back() * kColumns; ++i) {
      check(output.elements->get(position++) == brought(test, from, index(before * kColumns + i)),
            std::string("an element of ") + division.name);
    }
  }
  check(work.received_splits() == received, "the received splits");
  check(output.shape == Rows{sum(received), kColumns}, "the shape of the result");
}

void check_alltoall(const Case& test, std::uint64_t fusion) {
  Config config = test_config();
  config.fusion_bytes = fusion;
  run_group(
      test.ranks,
      [&](int rank, Runtime& runtime) {
        for (const Division& division : kDivisions) {
          // The second of each comes from the response cache.
          for (const std::string name : {division.name, division.name, "", ""}) {
            exchange(test, division, name, rank, runtime);
          }
        }
        // What looks alike on this rank alone hits, too.
        check(counter_of(runtime, "response_cache", "hits") >= 12, "every second one hits");
      },
      config);
}

std::int64_t rows_on(int rank, std::int64_t rows, int ranks) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

enum class Placement { Allocated, Given, OwnPart, FrontOfInput };

/// Compares `result` with what the ranks brought, from row `first` on.
void check_part(const Case& test, const Elements& result, std::int64_t first, double prescale,
                double postscale) {
  for (std::size_t i = 0; i < result.count(); ++i) {
    const double expected =
        expected_reduction(test, index(first * kColumns) + i, prescale, postscale);
    const double difference = std::abs(result.get(i) - expected);
    check(difference <= tolerance(test.dtype, expected),
          std::to_string(result.get(i)) + " is near " + std::to_string(expected));
  }
}

void scatter(const Case& test, std::int64_t rows, Placement placement, bool scaled, int rank,
             Runtime& runtime) {
  const std::int64_t mine = rows_on(rank, rows, test.ranks);
  std::int64_t first = 0;
  for (int before = 0; before < rank; ++before) first += rows_on(before, rows, test.ranks);
  Elements input = input_of(test, rank, rows);
  Elements given(test.dtype, index(mine * kColumns));
  Allocated allocated(test.dtype);
  Request request;
  request.kind = Collective::Reducescatter;
  request.name = "r";
  request.dtype = test.dtype;
  request.op = test.op;
  request.prescale = scaled ? 0.5 : 1.0;
  request.postscale = scaled ? 3.0 : 1.0;
  request.shape = {rows, kColumns};
  request.input = input.data();
  const std::size_t offset = index(first * kColumns) * size_of(test.dtype);
  auto* in_place = static_cast<std::byte*>(input.data());
  if (placement == Placement::OwnPart) in_place += offset;
  if (placement == Placement::Allocated) {
    request.allocate_output = allocated.allocator();
  } else {
    request.output = placement == Placement::Given ? given.data() : in_place;
  }
  const double prescale = request.prescale;
  const double postscale = request.postscale;
  runtime.submit(std::move(request)).wait();
  if (placement == Placement::Allocated) {
    check(allocated.shape == Rows{mine, kColumns}, "the shape of the result");
    given = allocated.elements.value();
  } else if (placement != Placement::Given && given.bytes() > 0) {
    std::memcpy(given.data(), in_place, given.bytes());
  }
  check_part(test, given, first, prescale, postscale);
}

void check_reducescatter(const Case& test, std::uint64_t fusion) {
  Config config = test_config();
  config.fusion_bytes = fusion;
  run_group(
      test.ranks,
      [&](int rank, Runtime& runtime) {
        for (const std::int64_t rows : {0, 1, 2, 7, 100}) {
          for (const bool scaled : {false, true}) {
            for (const Placement placement : {Placement::Allocated, Placement::Given,
                                              Placement::OwnPart, Placement::FrontOfInput}) {
              scatter(test, rows, placement, scaled, rank, runtime);
            }
          }
        }
        check(counter_of(runtime, "response_cache", "hits") == 30, "all but the first of each hit");
      },
      config);
}

const bool registered = [] {
  for (const DataType dtype : kAllDataTypes) {
    const std::string tail = " of " + std::string(to_string(dtype)) + " over 1 to 4 ranks";
    add_case("alltoall" + tail, "", [dtype] {
      for (const int ranks : {1, 2, 3, 4}) {
        const Case test{Collective::Alltoall, dtype, ReduceOp::Sum, ranks};
        for (const std::uint64_t fusion : {0, 1 << 20}) check_alltoall(test, fusion);
      }
    });
    add_case("reducescatter" + tail, "", [dtype] {
      for (const int ranks : {1, 2, 3, 4}) {
        for (const ReduceOp op : kAllReduceOps) {
          if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
          const Case test{Collective::Reducescatter, dtype, op, ranks};
          check_reducescatter(test, op == ReduceOp::Max ? 1 << 20 : 64);
        }
      }
    });
  }
  return true;
}();

Request alltoall_request(std::vector<float>& values, const Rows& shape, const Rows& splits,
                         Allocated& output) {
  Request request;
  request.kind = Collective::Alltoall;
  request.name = "x";
  request.shape = shape;
  request.splits = splits;
  request.input = values.data();
  request.allocate_output = output.allocator();
  return request;
}

/// An alltoall of [4, 3] between two ranks; `change` on those of `ranks` makes both fail alike.
void check_refused(const std::vector<int>& ranks, const std::function<void(Request&)>& change,
                   const std::string& expected) {
  std::array<std::string, 2> texts;
  run_group(2, [&](int rank, Runtime& runtime) {
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values(12, 1.0F);
      Allocated output(DataType::F32);
      Request request = alltoall_request(values, {4, kColumns}, {1, 3}, output);
      const bool is_bad = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
      // Cached first, then refused, then as before.
      if (step == 1 && is_bad) change(request);
      const Work work = runtime.submit(std::move(request));
      if (step != 1) {
        work.wait();
        check(work.received_splits() == (rank == 0 ? Rows{1, 1} : Rows{3, 3}), "goes on");
        continue;
      }
      texts[index(rank)] = usage_error_of(work);
      check(text_of<UsageError>([&] { work.received_splits(); }) == texts[index(rank)],
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
  check_refused({1}, splits({1, 2}),
                "alltoall 'x' is impossible:\n  rank 1: splits [1, 2] do not add up to the first "
                "dimension of [4, 3]");
  check_refused({0}, splits({1, 1, 2}), "rank 0: 3 splits were given for 2 ranks");
  check_refused({1}, splits({5, -1}), "rank 1: splits [5, -1] have a negative number");
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  check_refused({1}, splits({kMost, kMost}), "do not add up");
  check_refused({0, 1}, splits({4}), "alltoall 'x': 1 splits were given for 2 ranks");
  const auto odd = [](Request& request) {
    request.splits = {};
    request.shape = {3, kColumns};
  };
  check_refused({0, 1}, odd,
                "alltoall 'x': the first dimension of [3, 3] cannot be divided evenly among 2 "
                "ranks; give splits");
  check_refused({1}, odd, "rank 1: the first dimension of [3, 3]");
  const auto scalar = [](Request& request) { request.splits = request.shape = {}; };
  check_refused({0, 1}, scalar, "a scalar has no first dimension to split along");
  check_refused({1}, scalar, "rank 1: alltoall f32 [] on cpu");
  check_refused(
      {1},
      [](Request& request) {
        request.shape = {4, 1, 3};
      },
      "rank 1: alltoall f32 [4, 1, 3] splits [1, 3] on cpu\n  rank 0: alltoall f32 [4, 3] "
      "splits [1, 3] on cpu\nEvery rank must");
  check_refused(
      {1}, [](Request& request) { request.dtype = DataType::I32; },
      "rank 1: alltoall i32 [4, 3] splits [1, 3] on cpu");
  check_refused(
      {1},
      [](Request& request) {
        request.shape = {-4, 3};
      },
      "rank 1: shape [-4, 3] has a negative dimension");
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
        check_contains(usage_error_of(runtime.submit(request)), "the rows of all ranks together: ");
      });
    }
  }
}

TEST_CASE("a reducescatter that cannot be is refused on every rank") {
  const auto refused = [](const std::function<void(Request&, int)>& change,
                          const std::string& expected) {
    run_group(2, [&](int rank, Runtime& runtime) {
      std::vector<float> values(12, 1.0F);
      Request request = sum_request(values, "x");
      request.kind = Collective::Reducescatter;
      request.shape = {4, kColumns};
      change(request, rank);
      check_contains(usage_error_of(runtime.submit(request)), expected);
    });
  };
  refused([](Request& request, int) { request.shape = {}; },
          "reducescatter 'x': a scalar has no first dimension to split along");
  refused(
      [](Request& request, int) {
        request.dtype = DataType::Bool;
        request.op = ReduceOp::Average;
      },
      "bools have no average");
  refused(
      [](Request& request, int rank) {
        request.shape = {4 - rank, kColumns};
      },
      "rank 1: reducescatter f32 [3, 3] sum on cpu");
  refused([](Request& request, int rank) { request.prescale = rank; },
          "rank 0: reducescatter f32 [4, 3] sum prescale 0 on cpu");
}

TEST_CASE("what this rank alone can see of an alltoall or reducescatter is refused at once") {
  run_group(1, [](int, Runtime& runtime) {
    std::vector<float> values(6, 1.0F);
    const auto refused = [&](Collective kind, const std::function<void(Request&)>& change) {
      Request request = sum_request(values, "x");
      request.kind = kind;
      change(request);
      return text_of<UsageError>([&] { runtime.submit(request); });
    };
    for (const Collective kind : {Collective::Alltoall, Collective::Reducescatter}) {
      const std::string name(to_string(kind));
      check(refused(kind, [](Request& request) { request.input = nullptr; }) ==
                name + " 'x': input is null",
            "null input");
    }
    check(refused(Collective::Reducescatter, [](Request& r) { r.output = nullptr; }) ==
              "reducescatter 'x': neither output nor allocate_output is set",
          "null output");
    check_contains(refused(Collective::Reducescatter, [](Request& r) { r.splits = {6}; }),
                   "only an alltoall has splits");
    check_contains(refused(Collective::Alltoall, [](Request& r) { r.contributes = false; }),
                   "only a reduction can go without this rank's contribution");
  });
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

TEST_CASE("a rank whose part of a reducescatter has no rows needs no output") {
  run_group(3, [](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    Request request = sum_request(values, "x");
    request.kind = Collective::Reducescatter;
    if (rank == 2) request.output = nullptr;
    runtime.submit(request).wait();
    if (rank < 2) check(values[0] == 3.0F, "the sum");
  });
}

TEST_CASE("an alltoall may be in place and lie anywhere in its result") {
  Config config = test_config();
  config.fusion_bytes = 64;  // many chunks: the first ones overwrite the input
  run_group(
      3,
      [](int rank, Runtime& runtime) {
        for (const std::size_t shift : {0U, 1U, 50U}) {
          std::vector<float> values(300 + shift);
          for (std::size_t i = 0; i < 300; ++i) {
            values[shift + i] = static_cast<float>(rank * 1000 + static_cast<int>(i));
          }
          Request request;
          request.kind = Collective::Alltoall;
          request.shape = {300};
          request.input = values.data() + shift;
          request.output = values.data();
          const Work work = runtime.submit(request);
          work.wait();
          check(work.received_splits() == Rows{100, 100, 100}, "an even division");
          for (int i = 0; i < 300; ++i) {
            const int expected = i / 100 * 1000 + rank * 100 + i % 100;
            check(values[index(i)] == static_cast<float>(expected), "element " + std::to_string(i));
          }
        }
      },
      config);
}

TEST_CASE("splits that change from step to step are negotiated anew on the rank that changes") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (std::int64_t step = 0; step < 6; ++step) {
      std::vector<float> values(12, static_cast<float>(rank));
      Allocated output(DataType::F32);
      const std::int64_t first = rank == 1 ? step % 4 : 2;
      const Work work =
          runtime.submit(alltoall_request(values, {4, kColumns}, {first, 4 - first}, output));
      work.wait();
      const std::int64_t of_second = step % 4;
      const Rows expected = rank == 0 ? Rows{2, of_second} : Rows{2, 4 - of_second};
      check(work.received_splits() == expected, "the splits of this step");
    }
    check(counter_of(runtime, "response_cache", "hits") == (rank == 0 ? 5 : 0),
          "rank 0 asks for the same each time");
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

TEST_CASE("a rank without a contribution gets its part of the others' reducescatter") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (const ReduceOp op : kAllReduceOps) {
      std::vector<float> values(4, 3.0F);
      Request request = sum_request(values, "x");
      request.kind = Collective::Reducescatter;
      request.op = op;
      request.contributes = rank == 1;
      const Work work = runtime.submit(request);
      work.wait();
      check(work.contributed(), "rank 1 did");
      check(values[0] == (op == ReduceOp::Average ? 1.5F : 3.0F), "what rank 1 brought");
      request.contributes = false;
      values.assign(4, 7.0F);
      const Work nothing = runtime.submit(request);
      nothing.wait();
      check(!nothing.contributed() && values[0] == 7.0F, "nobody did");
    }
  });
}

TEST_CASE("what has rows of its own on each rank runs from a frozen schedule, and thaws it") {
  constexpr int kSteps = 60;
  constexpr int kDeviation = 40;
  run_group(2, [](int rank, Runtime& runtime) {
    for (int step = 0; step < kSteps; ++step) {
      const auto number = static_cast<float>(step);
      std::vector<float> values(12, number + static_cast<float>(rank));
      const Rows splits = rank == 1 && step == kDeviation ? Rows{4, 0} : Rows{1, 3};
      Allocated exchanged(DataType::F32);
      const Work exchange =
          runtime.submit(alltoall_request(values, {4, kColumns}, splits, exchanged));
      Allocated gathered(DataType::F32);
      Request gather = alltoall_request(values, {1 + rank, kColumns}, {}, gathered);
      gather.kind = Collective::Allgather;
      gather.name = "gather";
      const Work gathering = runtime.submit(gather);
      Allocated scattered(DataType::F32);
      Request scatter = alltoall_request(values, {3, kColumns}, {}, scattered);
      scatter.kind = Collective::Reducescatter;
      scatter.name = "scatter";
      runtime.submit(scatter).wait();
      gathering.wait();
      exchange.wait();
      const std::int64_t of_first = rank == 0 ? 1 : 3;
      std::int64_t of_second = of_first;
      if (step == kDeviation) of_second = rank == 0 ? 4 : 0;
      check(exchange.received_splits() == Rows{of_first, of_second}, "the splits of this step");
      const std::size_t first = index(of_first * kColumns);
      for (std::size_t i = 0; i < exchanged.elements->count(); ++i) {
        check(exchanged.elements->get(i) == number + (i < first ? 0 : 1), "an exchanged element");
      }
      check(gathered.shape == Rows{3, kColumns}, "three rows together");
      check(gathered.elements->get(0) == number && gathered.elements->get(8) == number + 1,
            "the rows of both");
      check(scattered.shape == Rows{rank == 0 ? 2 : 1, kColumns}, "its rows");
      check(scattered.elements->get(0) == 2 * number + 1, "the sum");
    }
    check(counter_of(runtime, "schedule", "freezes") >= 1, "the steps were frozen");
    check(counter_of(runtime, "schedule", "thaws") >= 1, "and the deviation thawed them");
  });
}

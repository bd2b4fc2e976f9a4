// SPDX-License-Identifier: Apache-2.0
// Alltoall on whole runtimes; its types are those of tests/oracle.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <latch>
#include <limits>
#include <numeric>

#include "ronde/error.h"
#include "tests/unit/rows_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

std::int64_t sum(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
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

void exchange(const Division& division, const std::string& name, int rank, Runtime& runtime) {
  const int ranks = runtime.topology().size;
  const Rows splits = splits_of(division, rank, ranks);
  const std::vector<float> input = input_of(rank, sum(splits));
  Allocated output;
  Request request;
  request.kind = Collective::Alltoall;
  request.name = name;
  request.shape = {sum(splits), kColumns};
  if (!division.is_even) request.splits = splits;
  request.input = input.data();
  request.allocate_output = output.allocator();
  const Work work = runtime.submit(std::move(request));
  work.wait();
  Rows received;
  std::vector<float> expected;
  for (int from = 0; from < ranks; ++from) {
    const Rows theirs = splits_of(division, from, ranks);
    received.push_back(theirs[index(rank)]);
    const std::int64_t before =
        std::accumulate(theirs.begin(), theirs.begin() + rank, std::int64_t{0});
    const std::vector<float> sent = input_of(from, sum(theirs));
    const auto first = sent.begin() + before * kColumns;
    expected.insert(expected.end(), first, first + received.back() * kColumns);
  }
  check_equal(output.elements.value(), expected, division.name);
  check_equal(work.received_splits(), received, "the received splits");
  check_equal(output.shape, Rows{sum(received), kColumns}, "the shape of the result");
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

TEST_CASE("rows are exchanged however they are divided, fused or not, over one to four ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::uint64_t fusion_bytes : {0, 1 << 20}) {
      Config config = test_config();
      config.fusion_bytes = fusion_bytes;
      const auto body = [](int rank, Runtime& runtime) {
        for (const Division& division : kDivisions) {
          // The second of each comes from the response cache.
          for (const std::string name : {division.name, division.name, "", ""}) {
            exchange(division, name, rank, runtime);
          }
        }
        // What looks alike on this rank alone hits, too.
        check(counter_of(runtime, "response_cache", "hits") >= 12, "every second one hits");
      };
      run_group(ranks, body, config);
    }
  }
}

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
        const std::string text = usage_error_of(runtime.submit(request));
        check_contains(text, "the rows of all ranks together: ");
        check_contains(text, shape.size() == 1 ? "\n  ranks 0,1: [1152921504606846976]"
                                               : "\n  ranks 0,1: [4611686018427387904, 0]");
      });
    }
  }
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
      check_contains(refused(kind, [](Request& request) { request.input = nullptr; }),
                     name + " 'x': input is null");
    }
    check_contains(refused(Collective::Reducescatter, [](Request& r) { r.output = nullptr; }),
                   "reducescatter 'x': neither output nor allocate_output is set");
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
      Allocated output;
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

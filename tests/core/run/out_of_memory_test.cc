// SPDX-License-Identifier: Apache-2.0
// A rank that has no memory for a result, which is known only once all ranks have begun.
#include <catch2/catch.hpp>
#include <new>

#include "core/src/run/adasum.h"
#include "tests/core/run/recorder_backend.h"
#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Shape = std::vector<std::int64_t>;

constexpr int kRanks = 3;
constexpr int kPoor = 1;
constexpr std::int64_t kRows = 60;  // of each rank; divides evenly

constexpr Collective kKinds[] = {Collective::Allgather, Collective::Alltoall,
                                 Collective::Reducescatter};

/// `[rows, 2]` of the rank's number.
Request request_of(Collective kind, std::vector<float>& input, int rank, std::int64_t rows) {
  input.assign(2 * kRows, static_cast<float>(rank));
  Request request = sum_request(input, "x");
  request.kind = kind;
  request.shape = {rows, 2};
  request.output = nullptr;
  return request;
}

float expected(Collective kind, std::size_t element) {
  if (kind == Collective::Reducescatter) return 0 + 1 + 2;
  const std::size_t rows_of_each = kind == Collective::Allgather ? kRows : kRows / kRanks;
  return static_cast<float>(element / 2 / rows_of_each);
}

/// The text of the error of rank kPoor, whose allocation `fails`; the others get their results all
/// the same.
template <typename ErrorOfPoor>
std::string text_of_poor(Collective kind, std::uint64_t fusion_bytes,
                         const std::function<void()>& fails, std::int64_t rows = kRows) {
  Config config = test_config();
  config.fusion_bytes = fusion_bytes;
  std::string text;
  const auto body = [&](int rank, Runtime& runtime) {
    for (int step = 0; step < 2; ++step) {
      std::vector<float> input;
      std::vector<float> output;
      int asked = 0;
      Request request = request_of(kind, input, rank, rows);
      if (rows == 0) request.input = nullptr;
      request.allocate_output = [&](const Shape& shape) -> void* {
        ++asked;
        if (rank == kPoor) fails();
        output.resize(static_cast<std::size_t>(shape[0] * shape[1]));
        return output.data();
      };
      const Work work = runtime.submit(std::move(request));
      if (rank == kPoor) {
        text = text_of<ErrorOfPoor>([&] { work.wait(); });
      } else {
        work.wait();
        check(output.empty() == (rows == 0), "a result");
      }
      check(asked == 1, "memory is asked for once");
      for (std::size_t i = 0; i < output.size(); ++i) {
        check(output[i] == expected(kind, i), "element " + std::to_string(i));
      }
    }
    check_goes_on(runtime);
  };
  run_group(kRanks, body, config);
  return text;
}

}  // namespace

TEST_CASE("a rank without memory for its result fails alone, and the others get theirs") {
  for (const Collective kind : kKinds) {
    const int rows = kind == Collective::Allgather ? 180 : kind == Collective::Alltoall ? 60 : 20;
    const std::string text = std::string(to_string(kind)) +
                             " 'x': rank 1 has no memory for its result. The result is f32 [" +
                             std::to_string(rows) + ", 2], " + std::to_string(8 * rows) + " bytes";
    // In many chunks, and in one.
    for (const std::uint64_t fusion_bytes : {64, 1 << 20}) {
      CHECK(text_of_poor<OutOfMemoryError>(kind, fusion_bytes, [] { throw std::bad_alloc(); }) ==
            text);
      CHECK(text_of_poor<OutOfMemoryError>(
                kind, fusion_bytes, [] { throw std::runtime_error("full"); }) == text + ": full");
    }
  }
}

TEST_CASE("an error of its own that allocate_output throws is that of the work") {
  const std::int64_t rows = GENERATE(std::int64_t{0}, std::int64_t{kRows});
  const auto fails = [] { throw UsageError("not today"); };
  for (const Collective kind : kKinds) {
    CHECK(text_of_poor<UsageError>(kind, 1 << 20, fails, rows) == "not today");
  }
}

// Sanitizers end a program that asks for so much.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("an adasum without memory says how much it lacks, for what, and what to do") {
  Record record;
  Recorder backend(record, 2);
  FusionBuffer scratch(std::size_t{1} << 20);
  float nothing = 0;
  const std::vector<Segment> segments = {{nullptr, &nothing, std::size_t{1} << 54}};
  const auto operation =
      adasum(backend, {.segments = segments, .op = ReduceOp::Adasum}, 0, 2, scratch);
  const std::string text = text_of<Error>([&] { operation->poll(); });
  // Twice 2^54 elements of 4 bytes, and little more.
  CHECK(text.find("adasum has no memory for the 144115188075856") == 0);
  CHECK(text.find(" 1 tensors of 18014398509481984 elements of f32. Give this rank more memory") !=
        std::string::npos);
}
#endif

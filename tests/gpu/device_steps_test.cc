// SPDX-License-Identifier: Apache-2.0
// Operations written as coroutines, and how segments are laid into a buffer.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "backends/gpu/base/chunk_layout.h"
#include "core/src/base/steps.h"
#include "ronde/error.h"

namespace {

using namespace ronde;
using namespace ronde::gpu;

/// Tells when it goes.
struct Guard {
  std::vector<std::string>* log;
  const char* name;
  ~Guard() { log->emplace_back(name); }
};

Steps inner_steps(const bool& may_go_on, std::vector<std::string>& log) {
  const Guard guard{&log, "inner gone"};
  log.emplace_back("inner begins");
  co_await until([&may_go_on] { return may_go_on; });
  log.emplace_back("inner ends");
}

Steps outer_steps(const bool& may_go_on, std::vector<std::string>& log) {
  const Guard guard{&log, "outer gone"};
  co_await inner_steps(may_go_on, log);
  log.emplace_back("outer ends");
}

Steps failing_steps(const bool& may_fail) {
  co_await until([&may_fail] { return may_fail; });
  throw Error("inner failed");
}

Steps catching_steps(const bool& may_fail, std::string& caught, std::vector<std::string>& log) {
  const Guard guard{&log, "unwound"};
  Steps inner = failing_steps(may_fail);
  try {
    co_await inner;
  } catch (const Error& error) {
    caught = error.what();
  }
  co_await until([]() -> bool { throw Error("asking failed"); });
}

/// Another backend's, of so many polls.
class Countdown final : public Operation {
 public:
  explicit Countdown(int polls) : left_(polls) {}
  bool poll() override { return --left_ <= 0; }
  std::uint64_t progress() const override { return static_cast<std::uint64_t>(100 - left_); }

 private:
  int left_;
};

Steps waiting_steps(Operation& operation) {
  co_await until_finished(operation);
}

struct Laid {
  std::size_t segment, offset, count, position;
  friend bool operator==(const Laid&, const Laid&) = default;
};

std::vector<std::vector<Laid>> chunks_of(const std::vector<std::size_t>& counts,
                                         std::size_t capacity, std::size_t alignment) {
  std::vector<Segment> segments;
  for (const std::size_t count : counts) segments.push_back({.count = count});
  ChunkLayout layout(segments, capacity, alignment);
  std::vector<std::vector<Laid>> chunks;
  while (layout.next()) {
    chunks.emplace_back();
    for (const Piece& piece : layout.pieces()) {
      const auto segment = static_cast<std::size_t>(piece.segment - segments.data());
      chunks.back().push_back({segment, piece.offset, piece.count, piece.position});
    }
    const Laid& last = chunks.back().back();
    CHECK(layout.extent() == last.position + last.count);
  }
  CHECK_FALSE(layout.next());
  return chunks;
}

}  // namespace

TEST_CASE(
    "cuda steps: they begin when asked, stop where they wait, and release all in their order") {
  using Log = std::vector<std::string>;
  const bool is_given_up = GENERATE(false, true);
  Log log;
  bool may_go_on = false;
  {
    Steps steps = outer_steps(may_go_on, log);
    CHECK(log.empty());
    CHECK_FALSE(steps.poll());
    CHECK(log == Log{"inner begins"});
    const std::uint64_t before = steps.progress();
    CHECK_FALSE(steps.poll());
    CHECK(steps.progress() == before);
    may_go_on = !is_given_up;
    CHECK(steps.poll() != is_given_up);
    CHECK((steps.progress() > before) != is_given_up);
    CHECK(steps.poll() != is_given_up);
  }
  CHECK(log == (is_given_up
                    ? Log{"inner begins", "inner gone", "outer gone"}
                    : Log{"inner begins", "inner ends", "inner gone", "outer ends", "outer gone"}));
}

TEST_CASE("cuda steps: what a wait throws is thrown where it was waited for, and at last by poll") {
  std::vector<std::string> log;
  std::string caught;
  const bool at_once = GENERATE(true, false);
  bool may_fail = at_once;
  Steps steps = catching_steps(may_fail, caught, log);
  if (!at_once) CHECK_FALSE(steps.poll());
  may_fail = true;
  CHECK_THROWS_WITH(steps.poll(), "asking failed");
  CHECK(caught == "inner failed");
  CHECK(log == std::vector<std::string>{"unwound"});
}

TEST_CASE("cuda steps: progress never shrinks, and that of another backend counts") {
  Countdown operation(20);
  Steps steps = waiting_steps(operation);
  std::uint64_t seen = 0;
  int polls = 0;
  for (bool is_over = false; !is_over; ++polls) {
    is_over = steps.poll();
    const std::uint64_t progress = steps.progress();
    CHECK(progress > seen);
    seen = progress;
  }
  CHECK(polls == 20);
}

TEST_CASE("gpu chunks: segments follow each other at aligned positions, and go on in the next") {
  using Chunks = std::vector<std::vector<Laid>>;
  struct Row {
    std::vector<std::size_t> counts;
    Chunks chunks;
  };
  const Row rows[] = {
      {{3, 5, 0, 4}, {{{0, 0, 3, 0}, {1, 0, 5, 4}, {3, 0, 4, 12}}}},
      {{3, 20, 1}, {{{0, 0, 3, 0}, {1, 0, 12, 4}}, {{1, 12, 8, 0}, {2, 0, 1, 8}}}},
      // One that ends with the buffer, and one behind which the next aligned position is the end.
      {{16, 16}, {{{0, 0, 16, 0}}, {{1, 0, 16, 0}}}},
      {{13, 1}, {{{0, 0, 13, 0}}, {{1, 0, 1, 0}}}},
      // None is laid where there is nothing.
      {{}, {}},
      {{0, 0, 0}, {}},
      {{0, 1, 0}, {{{1, 0, 1, 0}}}}};
  for (const Row& row : rows) {
    CAPTURE(row.counts);
    CHECK(chunks_of(row.counts, 16, 4) == row.chunks);
  }
}

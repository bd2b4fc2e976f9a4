// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/in_flight.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "ronde/error.h"

namespace {

using namespace ronde;
using Catch::Contains;

std::vector<std::byte> memory(2 << 20);

/// Bytes of `memory`.
struct Part {
  std::size_t begin = 0;
  std::size_t end = 0;
};

bool overlap(const Part& a, const Part& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

Submission operation(const std::string& name, Part input, Part output) {
  Submission made;
  Request request;
  request.name = name;
  request.dtype = DataType::U8;
  request.shape = {static_cast<std::int64_t>(input.end - input.begin)};
  made.key.spec = share(spec_of(request));
  made.input_bytes = input.end - input.begin;
  made.output_bytes = output.end - output.begin;
  if (input.begin < input.end) made.start.input = &memory.at(input.begin);
  if (output.begin < output.end) made.start.output = &memory.at(output.begin);
  return made;
}

Submission in_place(const std::string& name, Part part) {
  return operation(name, part, part);
}

/// Why it may not enter; empty: it has entered.
std::string refusal(MemoryInFlight& in_flight, Submission& submission) {
  try {
    in_flight.enter(submission);
    return {};
  } catch (const UsageError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("the same memory twice in flight is refused, and both operations are named") {
  MemoryInFlight in_flight;
  Submission first = in_place("a", {0, 100});
  in_flight.enter(first);
  Submission second = in_place("b", {99, 200});
  CHECK(refusal(in_flight, second) ==
        "allreduce 'b' writes its result to memory that allreduce 'a' writes its result to and "
        "that is still in flight: wait for that operation first, or give each memory of its own "
        "(list a tensor once in a group)");
  Submission reader = operation("c", {50, 60}, {300, 310});
  CHECK_THAT(refusal(in_flight, reader),
             Contains("allreduce 'c' reads memory that allreduce 'a' writes its result to"));
  // Nothing of what was refused is left.
  Submission other = in_place("d", {100, 400});
  in_flight.enter(other);
  in_flight.leave(other);
  in_flight.leave(first);
  in_flight.leave(first);
  in_flight.enter(second);
  Submission early = operation("e", {0, 50}, {400, 450});
  in_flight.enter(early);
  Submission over = in_place("f", {49, 99});
  CHECK_THAT(refusal(in_flight, over),
             Contains("'f' writes its result to memory that allreduce 'e' reads"));
}

TEST_CASE("what finish writes counts, and a group that lists a tensor twice enters nothing") {
  MemoryInFlight in_flight;
  Submission staged = in_place("a", {0, 10});
  staged.start.written = std::span(memory).subspan(1000, 20);
  in_flight.enter(staged);
  Submission second = in_place("b", {1019, 1020});
  CHECK(refusal(in_flight, second) != "");

  Submission group;
  group.members = {in_place("c", {10, 20}), in_place("d", {20, 30}), in_place("e", {10, 20})};
  CHECK_THAT(refusal(in_flight, group), Contains("'e'") && Contains("'c'"));
  group.members.pop_back();
  CHECK(refusal(in_flight, group) == "");
}

TEST_CASE("memory of random operations is compared as a list of all in flight would") {
  std::mt19937 random(20261127);
  const auto draw = [&](std::size_t places) {
    const std::size_t begin = random() % places * 8;
    return Part{begin, begin + 8 * (1 + random() % 3)};
  };
  // Few places, so that most come again, exactly or not, and many operations read one; and more
  // than stay known.
  for (const std::size_t places : {12U, 60U, 500U, 200'000U}) {
    MemoryInFlight in_flight;
    struct Flying {
      Submission submission;
      Part input, output;
    };
    std::deque<Flying> flying;
    for (int step = 0; step < 20'000; ++step) {
      Flying next;
      next.output = random() % 8 == 0 ? Part{} : draw(places);
      next.input = random() % 2 == 0 ? next.output : draw(places);
      next.submission = operation(std::to_string(step), next.input, next.output);
      const bool is_free = std::ranges::none_of(flying, [&](const Flying& other) {
        return overlap(next.output, other.output) || overlap(next.output, other.input) ||
               overlap(next.input, other.output);
      });
      if (refusal(in_flight, next.submission).empty() != is_free) FAIL("step " << step);
      if (is_free) flying.push_back(std::move(next));
      const std::size_t most = std::min<std::size_t>(1 + places / 4, 126);
      while (flying.size() > most || (!flying.empty() && random() % 3 == 0)) {
        const auto ended = flying.begin() + static_cast<std::ptrdiff_t>(random() % flying.size());
        in_flight.leave(ended->submission);
        flying.erase(ended);
      }
    }
  }
}

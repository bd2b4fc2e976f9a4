// SPDX-License-Identifier: Apache-2.0
#include "ronde/figures.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "core/src/events/event_log.h"

namespace {

using namespace ronde;

constexpr std::int64_t kUs = 1000;

std::shared_ptr<Logger> silent() {
  return std::make_shared<Logger>(LogLevel::Off);
}

/// An operation from its submission at `begin` on: announced 1 us later, agreed after 10, started
/// after 12, finished after 32, completed after 33.
void play(FigureReader& reader, std::uint64_t number, std::int64_t begin_us,
          std::uint64_t bytes = 1000, int last_rank = 1) {
  const auto take = [&](EventKind kind, std::int64_t us, EventRecord event = {}) {
    event.kind = kind;
    event.time_ns = (begin_us + us) * kUs;
    event.operation = event.operation == 0 ? number : event.operation;
    event.bucket = number;
    reader.take(event);
  };
  take(EventKind::Submitted, 0, {.bytes = bytes});
  take(EventKind::Announced, 1);
  take(EventKind::Agreed, 10, {.rank = last_rank});
  take(EventKind::Started, 12, {.bytes = bytes, .uncompressed_bytes = 2 * bytes});
  take(EventKind::Finished, 32);
  take(EventKind::Completed, 33);
}

std::int64_t total_us(const Distribution& distribution) {
  return distribution.total_ns() / kUs;
}

}  // namespace

TEST_CASE("quantiles of a distribution are at most an eighth too large") {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> durations(10, 2);
  Distribution distribution;
  std::vector<std::int64_t> sorted;
  for (int i = 0; i < 10'000; ++i) {
    sorted.push_back(static_cast<std::int64_t>(durations(random)));
    distribution.add(sorted.back());
  }
  std::sort(sorted.begin(), sorted.end());
  for (const double quantile : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    const auto index = static_cast<std::size_t>(std::ceil(quantile * 10'000)) - 1;
    const auto exact = static_cast<double>(sorted[index]);
    const auto found = static_cast<double>(distribution.quantile_ns(quantile));
    CHECK(found >= exact);
    CHECK(found <= exact * 1.126 + 1);
  }
  CHECK(distribution.largest_ns() == sorted.back());
  CHECK(distribution.count() == 10'000);
}

TEST_CASE("the phases of a message follow from its events") {
  FigureReader reader;
  play(reader, 1, 100);
  play(reader, 2, 200);
  const Figures& figures = reader.figures();
  CHECK(figures.operations == 2);
  CHECK(total_us(figures.gather) == 2);
  REQUIRE(figures.messages.count(10) == 1);  // 1000 bytes: up to 2^10
  const MessageFigures& messages = figures.messages.at(10);
  CHECK(messages.count == 2);
  CHECK(messages.tensors == 2);
  CHECK(messages.bytes == 2000);
  CHECK(messages.uncompressed_bytes == 4000);
  CHECK(total_us(messages.phase(Phase::Negotiate)) == 18);
  CHECK(total_us(messages.phase(Phase::Queue)) == 4);
  CHECK(total_us(messages.phase(Phase::Communicate)) == 40);
  CHECK(total_us(messages.phase(Phase::Complete)) == 2);
  CHECK(messages.phase(Phase::Pack).count() == 0);
  REQUIRE(figures.last_ranks.count(1) == 1);
  CHECK(figures.last_ranks.at(1).count == 2);
  CHECK(figures.last_ranks.at(1).lost_ns == 0);  // no thread has waited
}

namespace {

using LostFor = std::map<int, std::int64_t>;

/// Times in us; those of what does not happen are 0.
struct Awaited {
  std::uint64_t operation = 0;
  std::int64_t begun = 0, agreed = 0, ended = 0;
  int last_rank = -1;
};

/// Operations of which a thread waits for each, and steps, in the order of time.
void take(FigureReader& reader, const std::vector<Awaited>& waits,
          const std::vector<std::int64_t>& step_ends) {
  std::vector<EventRecord> events;
  const auto add = [&](EventKind kind, std::int64_t us, const Awaited& wait = {}) {
    if (us == 0) return;
    events.push_back({.time_ns = us * kUs,
                      .kind = kind,
                      .rank = wait.last_rank,
                      .operation = wait.operation,
                      .bucket = wait.operation});
  };
  for (const Awaited& wait : waits) {
    add(EventKind::Submitted, 1, wait);
    add(EventKind::WaitBegun, wait.begun, wait);
    add(EventKind::Agreed, wait.agreed, wait);
    add(EventKind::WaitEnded, wait.ended, wait);
  }
  for (const std::int64_t us : step_ends) add(EventKind::StepEnded, us);
  std::ranges::stable_sort(events, {}, &EventRecord::time_ns);
  for (const EventRecord& event : events) reader.take(event);
}

LostFor lost_by(const FigureReader& reader) {
  LostFor lost;
  for (const auto& [rank, last] : reader.figures().last_ranks) lost[rank] = last.lost_ns / kUs;
  return lost;
}

}  // namespace

TEST_CASE("time lost to late ranks is that of waits in steps, once where they overlap") {
  // Two threads wait, once for what all have submitted, and once for what a host's ranks end
  // together.
  const std::vector<Awaited> waits = {
      {5, 20, 30, 45, 1}, {6, 25, 40, 50, 2}, {7, 51, 35, 58, 3}, {8, 70, 74, 80, -1}};
  const std::vector<Awaited> of_rank_1 = {
      {1, 20, 60, 60, 1}, {2, 110, 113, 113, 1}, {3, 130, 190, 190, 1}};
  const std::vector<Awaited> given_up = {{5, 20, 0, 25}, {5, 30, 40, 41, 1}};
  struct Row {
    std::vector<Awaited> waits;
    std::vector<std::int64_t> step_ends;
    LostFor lost;
  };
  for (const auto& [taken, step_ends, lost] : std::vector<Row>{
           {waits, {10}, {}},
           {waits, {10, 60}, {{1, 10}, {2, 10}}},
           {waits, {10, 60, 80}, {{-1, 4}, {1, 10}, {2, 10}}},
           {of_rank_1, {}, {{1, 103}}},
           {of_rank_1, {100}, {{1, 0}}},  // before the first step and behind the last one
           {of_rank_1, {100, 120}, {{1, 3}}},
           {given_up, {10, 50}, {{1, 15}}}}) {
    FigureReader reader;
    take(reader, taken, step_ends);
    CHECK(lost_by(reader) == lost);
    if (step_ends.size() == 3) CHECK(total_us(reader.figures().exposed) == 47);
  }
}

TEST_CASE("no time is lost to operations whose end nobody can see") {
  FigureReader reader;
  take(reader, {{5, 20}}, {10});
  if (GENERATE(true, false)) {
    reader.forget_waits();
  } else {
    take(reader, {{5 + 4096}}, {});  // takes its place
  }
  take(reader, {{6, 80, 83, 0, 1}}, {100});
  CHECK(lost_by(reader) == LostFor{{1, 3}});
}

TEST_CASE("messages are counted in the class of their size") {
  FigureReader reader;
  std::uint64_t number = 0;
  for (const std::uint64_t bytes : {0, 1, 2, 3, 131072, 131073, 1 << 26}) {
    play(reader, ++number, 100, bytes);
  }
  std::map<int, std::uint64_t> counts;
  for (const auto& [exponent, messages] : reader.figures().messages) {
    counts[exponent] = messages.count;
  }
  CHECK(counts == std::map<int, std::uint64_t>{{0, 2}, {1, 1}, {2, 1}, {17, 1}, {18, 1}, {26, 1}});
}

TEST_CASE("exposed is the time in which a thread of the program waits, once") {
  FigureReader reader;
  // Two threads wait, and a step ends in the middle of a wait.
  take(reader, {{5, 20, 0, 30}, {6, 25, 0, 40}, {7, 50, 0, 65}}, {10, 60, 80});
  const Figures& figures = reader.figures();
  CHECK(figures.steps == 3);
  CHECK(figures.step_time.count() == 2);  // nobody knows when the first began
  CHECK(total_us(figures.step_time) == 70);
  CHECK(total_us(figures.exposed) == 35);
  CHECK(figures.exposed.largest_ns() == 30 * kUs);
}

TEST_CASE("the last message of a step and its start before the end of backward are known") {
  FigureReader reader;
  reader.take({.time_ns = 50 * kUs, .kind = EventKind::StepEnded, .operation = 1});
  reader.take({.time_ns = 60 * kUs, .kind = EventKind::SpanBegun, .operation = 1}, kBackwardSpan);
  play(reader, 1, 100, 4000);
  reader.take({.time_ns = 115 * kUs, .kind = EventKind::SpanEnded, .operation = 1});
  reader.take({.time_ns = 200 * kUs, .kind = EventKind::StepEnded, .operation = 2});
  const Figures& figures = reader.figures();
  CHECK(figures.last_buckets == 1);
  CHECK(figures.last_bucket_bytes == 4000);
  CHECK(figures.last_bucket_lead_ns == 3 * kUs);  // started at 112
  CHECK(total_us(figures.backward) == 55);
}

TEST_CASE("spans are counted by name, and of too many names together") {
  FigureReader reader;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * 100 * kUs;
    reader.take({.time_ns = begin, .kind = EventKind::SpanBegun, .operation = i},
                "span " + std::to_string(i));
    reader.take(
        {.time_ns = begin + 7 * kUs, .kind = EventKind::SpanEnded, .operation = i, .bytes = 10});
  }
  const auto& spans = reader.figures().spans;
  CHECK(spans.size() == Figures::kMostSpanNames + 1);
  CHECK(spans.at("span 1").bytes == 10);
  CHECK(total_us(spans.at("span 1").time) == 7);
  CHECK(spans.at("others").time.count() == 36);
}

TEST_CASE("a thousand messages may be agreed before the first of them starts") {
  FigureReader reader;
  const auto take = [&](EventKind kind, std::uint64_t number, std::int64_t ns) {
    reader.take({.time_ns = ns, .kind = kind, .operation = number, .bucket = number, .bytes = 8});
  };
  for (std::uint64_t i = 1; i <= 1000; ++i) take(EventKind::Submitted, i, 10);
  for (std::uint64_t i = 1; i <= 1000; ++i) take(EventKind::Announced, i, 20);
  for (std::uint64_t i = 1; i <= 1000; ++i) take(EventKind::Agreed, i, 30);
  for (std::uint64_t i = 1; i <= 1000; ++i) take(EventKind::Started, i, 40);
  const MessageFigures& messages = reader.figures().messages.at(3);
  CHECK(messages.tensors == 1000);
  CHECK(messages.phase(Phase::Negotiate).count() == 1000);
  CHECK(reader.figures().gather.count() == 1000);
  for (std::uint64_t i = 1; i <= 1000; ++i) take(EventKind::Announced, i, 50);  // after a thaw
  CHECK(reader.figures().gather.count() == 1000);
}

TEST_CASE("figures of ranks are merged") {
  FigureReader first, second;
  play(first, 1, 100, 1000, 0);
  play(second, 1, 100, 1000, 1);
  play(second, 2, 200, 100'000, 1);
  Figures merged = first.figures();
  merged.counters = {{"execution", {{"bytes", 5}, {"largest_bucket_bytes", 9}}}};
  Figures other = second.figures();
  other.counters = {{"execution", {{"bytes", 6}, {"largest_bucket_bytes", 7}}},
                    {"shm", {{"x", 1}}}};
  merged.merge(other);
  CHECK(merged.operations == 3);
  CHECK(merged.messages.at(10).count == 2);
  CHECK(merged.messages.at(17).count == 1);
  CHECK(merged.last_ranks.at(0).count == 1);
  CHECK(merged.last_ranks.at(1).count == 2);
  REQUIRE(merged.counters.size() == 2);
  CHECK(merged.counters[0].counters[0].second == 11);
  CHECK(merged.counters[0].counters[1].second == 9);
}

TEST_CASE("figures are complete although more events were written than the ring holds") {
  EventLog log(4096, silent());
  for (std::uint64_t i = 1; i <= 10'000; ++i) {
    log.write({.time_ns = EventLog::now_ns(), .kind = EventKind::Submitted, .operation = i}, "x");
  }
  const Figures figures = log.figures();
  CHECK(figures.operations == 10'000);
  CHECK(figures.lost_events == 0);
  CHECK(figures.events == 10'000);
}

TEST_CASE("of more numbers than are kept a series has equally distant ones, and the newest") {
  constexpr int kMost = 10'000;
  ronde::Series series;
  for (int i = 0; i < kMost; ++i) {
    series.add(i, -i);
    const auto& points = series.points;
    REQUIRE(points.size() <= ronde::Series::kMostPoints);
    REQUIRE(points.front().first == 0);
    REQUIRE(points.back() == std::pair<double, double>(i, -i));
    REQUIRE(2 * points.size() * series.stride > static_cast<std::size_t>(i));
  }
  CHECK(series.count == kMost);
  for (std::size_t i = 0; i + 1 < series.points.size(); ++i) {
    CHECK(series.points[i].first == static_cast<double>(i * series.stride));
  }
}

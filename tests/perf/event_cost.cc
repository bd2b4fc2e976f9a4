// SPDX-License-Identifier: Apache-2.0
// What an event costs, with the figures that are made of it: those of a small allreduce, again and
// again. Prints the median of several rounds.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "core/src/events/event_log.h"
#include "tests/perf/rounds.h"

namespace {

using namespace ronde;

constexpr std::uint64_t kOperations = 200'000;
constexpr int kRounds = 15;
/// That a reader sees, in five writes.
constexpr int kEvents = 8;

void write_operation(EventLog& log, std::uint64_t number, std::int64_t time_ns) {
  log.write({.time_ns = time_ns,
             .kind = EventKind::Submitted,
             .then = ThenAlso::AnnouncedAndWaitBegun,
             .operation = number,
             .bytes = 4},
            "loss");
  log.write({.time_ns = time_ns + 100,
             .kind = EventKind::Agreed,
             .rank = 1,
             .operation = number,
             .bucket = number});
  log.write({.time_ns = time_ns + 200,
             .kind = EventKind::Started,
             .bucket = number,
             .bytes = 4,
             .uncompressed_bytes = 4},
            "shm");
  log.write({.time_ns = time_ns + 900,
             .kind = EventKind::Finished,
             .then = ThenAlso::Completed,
             .operation = number,
             .bucket = number});
  log.write({.time_ns = time_ns + 1000, .kind = EventKind::WaitEnded, .operation = number});
}

double ns_an_operation(std::uint64_t capacity) {
  EventLog log(capacity, std::make_shared<Logger>(LogLevel::Off));
  std::vector<double> rounds;
  std::uint64_t number = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = EventLog::Clock::now();
    for (std::uint64_t i = 0; i < kOperations; ++i) {
      ++number;
      write_operation(log, number, static_cast<std::int64_t>(2000 * number));
    }
    const std::chrono::duration<double, std::nano> passed = EventLog::Clock::now() - begin;
    rounds.push_back(passed.count() / kOperations);
  }
  return perf::median(rounds);
}

}  // namespace

int main() {
  const double off = ns_an_operation(0);
  const double on = ns_an_operation(16384);
  std::printf("a small allreduce: %.1f ns with events, %.1f ns without; an event: %.1f ns\n", on,
              off, (on - off) / kEvents);
}

// SPDX-License-Identifier: Apache-2.0
// What a group tells of its operations: events to sinks, figures, reports in shutdown().
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <latch>
#include <map>

#include "tests/support/ranks/faulty_group.h"

using namespace ronde;
using namespace ronde::test;

namespace {

class Collector final : public EventSink {
 public:
  void take(std::span<const Event> events, std::uint64_t lost) override {
    const std::lock_guard lock(mutex_);
    events_.insert(events_.end(), events.begin(), events.end());
    lost_ += lost;
  }

  std::vector<Event> events() const {
    const std::lock_guard lock(mutex_);
    check(lost_ == 0, "nothing is lost");
    return events_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::uint64_t lost_ = 0;
};

class Thrower final : public EventSink {
 public:
  void take(std::span<const Event>, std::uint64_t) override {
    ++calls;
    throw std::runtime_error("the disk is full");
  }
  std::atomic<int> calls{0};
};

/// The kinds of the events of each operation, by its name.
std::map<std::string, std::vector<EventKind>> kinds_by_name(const std::vector<Event>& events) {
  std::map<std::uint64_t, std::string> names;
  std::map<std::string, std::vector<EventKind>> kinds;
  for (const Event& event : events) {
    if (event.kind == EventKind::Submitted) names[event.operation] = event.text;
    const auto known = names.find(event.operation);
    const bool is_of_operation =
        event.kind <= EventKind::Agreed || event.kind == EventKind::Completed ||
        event.kind == EventKind::Failed || event.kind == EventKind::Abandoned;
    if (is_of_operation && known != names.end()) kinds[known->second].push_back(event.kind);
  }
  return kinds;
}

std::int64_t count(const std::vector<Event>& events, EventKind kind) {
  return std::count_if(events.begin(), events.end(),
                       [kind](const Event& event) { return event.kind == kind; });
}

void sum_some(Runtime& runtime, int steps) {
  std::vector<float> one(100, 1.0F), two(5000, 1.0F);
  for (int step = 0; step < steps; ++step) {
    const std::vector<Work> works = {runtime.submit(sum_request(one, "one")),
                                     runtime.submit(sum_request(two, "two"))};
    for (const Work& work : works) work.wait();
    runtime.mark_step(16);
  }
}

}  // namespace

TEST_CASE("a sink gets every event of every operation, negotiated and by a frozen schedule") {
  constexpr int kSteps = 20;
  run_group(2, [](int, Runtime& runtime) {
    const auto sink = std::make_shared<Collector>();
    runtime.add_event_sink(sink);
    sum_some(runtime, kSteps);
    runtime.run(barrier_request());
    runtime.remove_event_sink(*sink);
    const std::vector<Event> events = sink->events();
    for (const std::string name : {"one", "two"}) {
      const std::vector<EventKind> kinds = kinds_by_name(events).at(name);
      const auto of = [&](EventKind kind) { return std::count(kinds.begin(), kinds.end(), kind); };
      check(of(EventKind::Submitted) == kSteps, name + " submitted");
      check(of(EventKind::Agreed) == kSteps, name + " agreed");
      check(of(EventKind::Completed) == kSteps, name + " completed");
    }
    check(count(events, EventKind::Started) == count(events, EventKind::Finished), "buckets end");
    check(count(events, EventKind::WaitBegun) == count(events, EventKind::WaitEnded), "waits end");
    check(count(events, EventKind::StepEnded) == kSteps, "steps");
    check(count(events, EventKind::Frozen) > 0, "it was frozen");
    runtime.shutdown();
    const auto after = sink->events().size();
    check(after == events.size(), "no event after it was removed");
  });
}

TEST_CASE("the buckets of a set have the same numbers on all its ranks, whoever sends messages") {
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> buckets(3);
  run_group(3, [&](int rank, Runtime& runtime) {
    std::vector<float> values(100, 1.0F), message(10, 1.0F);
    for (int step = 0; step < 5; ++step) {
      if (rank == 1) runtime.run(send_request(message, 2));
      if (rank == 2) runtime.run(recv_request(message, 1));
      runtime.run(sum_request(values, "x"));
    }
    for (const Event& event : runtime.recent_events()) {
      if (event.kind == EventKind::Started && event.bucket < kMessageBucket) {
        buckets[static_cast<std::size_t>(rank)].emplace_back(event.bucket, event.bytes);
      }
    }
  });
  CHECK(buckets[0].size() == 5);
  CHECK(buckets[1] == buckets[0]);
  CHECK(buckets[2] == buckets[0]);
}

namespace {

/// The rank that was last to announce each operation, by its name, as each rank was told.
using Lasts = std::map<std::string, std::vector<int>>;

void add_lasts(const Runtime& runtime, Lasts& lasts) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::map<std::uint64_t, std::string> names;
  for (const Event& event : runtime.recent_events()) {
    if (event.kind == EventKind::Submitted) names[event.operation] = event.text;
    if (event.kind == EventKind::Agreed) lasts[names[event.operation]].push_back(event.rank);
  }
}

}  // namespace

TEST_CASE("the rank that announces an operation last is known to all") {
  Lasts lasts;
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(10, 1.0F), message(1, 1.0F);
    // Rank 1 submits only once rank 0 has, which tells it so by a message.
    if (rank == 0) {
      const Work work = runtime.submit(sum_request(values, "x"));
      runtime.run(send_request(message, 1));
      work.wait();
    } else {
      runtime.run(recv_request(message, 0));
      runtime.run(sum_request(values, "x"));
    }
    add_lasts(runtime, lasts);
  });
  CHECK(lasts.at("x") == std::vector<int>{1, 1});
}

TEST_CASE("of three ranks the one is blamed that made the operation complete") {
  Lasts lasts;
  run_group(3, [&](int rank, Runtime& runtime) {
    std::vector<float> x(10, 1.0F), y(10, 1.0F), message(1, 1.0F);
    // x is complete by rank 2, which rank 1 tells to come once it has announced x itself.
    const Work other = runtime.submit(sum_request(y, "y"));
    if (rank < 2) {
      const Work work = runtime.submit(sum_request(x, "x"));
      if (rank == 1) runtime.run(send_request(message, 2));
      work.wait();
    } else {
      runtime.run(recv_request(message, 1));
      runtime.run(sum_request(x, "x"));
    }
    other.wait();
    add_lasts(runtime, lasts);
  });
  const int last = lasts.at("x").front();
  CHECK(lasts.at("x") == std::vector<int>(3, last));
  CHECK(last != 1);  // rank 0 may have been even later
}

TEST_CASE("each wait that begins ends, also of callers that wait from the start for several") {
  run_group(2, [](int, Runtime& runtime) {
    std::vector<float> one(10, 1.0F), two(10, 1.0F);
    for (int step = 0; step < 10; ++step) {
      std::vector<Request> requests = {sum_request(one, "one"), sum_request(two, "two")};
      for (Request& request : requests) request.caller_waits = true;
      const std::vector<Work> works = runtime.submit_group(std::move(requests));
      for (const Work& work : works) work.wait();
      for (const Work& work : works) work.wait();
      runtime.run(barrier_request());
    }
    const std::vector<Event> events = runtime.recent_events();
    check(count(events, EventKind::WaitBegun) == count(events, EventKind::WaitEnded), "waits");
    check(count(events, EventKind::WaitBegun) >= 30, "all of them are seen");
  });
}

TEST_CASE("no events, no figures, and the group works") {
  Config config = test_config();
  config.events = 0;
  const auto body = [](int, Runtime& runtime) {
    sum_some(runtime, 5);
    check(runtime.figures().operations == 0, "nothing was recorded");
    check(runtime.recent_events().empty(), "nothing is kept");
  };
  run_group(2, body, config);
}

TEST_CASE("a sink that fails is removed, and the group works on") {
  run_group(2, [](int, Runtime& runtime) {
    const auto thrower = std::make_shared<Thrower>();
    const auto sink = std::make_shared<Collector>();
    runtime.add_event_sink(thrower);
    runtime.add_event_sink(sink);
    sum_some(runtime, 5);
    runtime.remove_event_sink(*sink);
    check(thrower->calls == 1, "it is not called again");
    check(count(sink->events(), EventKind::StepEnded) == 5, "the other one got all");
    runtime.shutdown();
  });
}

TEST_CASE("rank 0 gets the reports of all ranks when they shut down") {
  run_group(4, [](int rank, Runtime& runtime) {
    const std::vector<std::string> reports = runtime.shutdown("report of " + std::to_string(rank));
    if (rank > 0) return check(reports.empty(), "other ranks get nothing");
    const std::vector<std::string> expected = {"report of 0", "report of 1", "report of 2",
                                               "report of 3"};
    check(reports == expected, "in rank order");
  });
}

TEST_CASE("the events of a failed group end with the failures of its operations") {
  std::latch submitted(1);
  run_group(2, [&submitted](int rank, Runtime& runtime) {
    std::vector<float> values(10, 1.0F);
    if (rank == 1) {
      submitted.wait();
      runtime.abort("enough");
      return check_contains(death_in_barrier(runtime).text, "enough");
    }
    const Work work = runtime.submit(sum_request(values, "lonely"));
    submitted.count_down();
    check_contains(death_of([&] { work.wait(); }).text, "enough");
    const std::vector<Event> events = runtime.recent_events();
    check(count(events, EventKind::Abandoned) == 1, "its end is recorded");
    check(kinds_by_name(events).at("lonely").back() == EventKind::Abandoned, "as the group's");
  });
}

TEST_CASE("ranks of other hosts know how far rank 0's clock is ahead") {
  run_on({0, 1, 1}, [](int rank, Runtime& runtime) {
    sum_some(runtime, 20);
    const std::vector<ClockOffset> offsets = runtime.clock_offsets();
    if (rank == 0) return check(offsets.empty(), "rank 0 has its own clock");
    check(offsets.size() == 2, "they are known");
    // Here all ranks have one clock.
    for (const ClockOffset& offset : offsets) {
      check(std::abs(offset.ahead_ns) <= offset.uncertainty_ns, "0 is within the bounds");
    }
  });
}

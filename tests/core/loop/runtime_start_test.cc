// SPDX-License-Identifier: Apache-2.0
// How runtimes meet, and what keeps them from it.
#include <pthread.h>
#include <sched.h>

#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
#include <latch>
#include <set>

#include "tests/support/fakes/faulty_backend.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/ranks/requests.h"
#include "tests/support/ranks/results_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

using Change = std::function<void(int rank, RuntimeOptions& options)>;

/// Ranks start whose options `change` may alter. `absent`, if any, does not come: the others begin
/// their start together, so that a short limit passes for it alone. They all blame `culprit`, with
/// `part` in the text.
void check_start_fails(const inproc::Group& group, int size, int absent, int culprit,
                       const std::string& part, const Change& change = {}) {
  CAPTURE(size, absent);
  std::barrier together(absent < 0 ? size : size - 1);
  std::vector<Death> deaths = on_each_rank(size, [&](int rank) {
    if (rank == absent) return Death();
    RuntimeOptions options = options_of(group, rank);
    if (change) change(rank, options);
    together.arrive_and_wait();
    return death_of([&] { const Runtime runtime(std::move(options)); });
  });
  if (absent < 0) return check_same_death(deaths, culprit, {part});
  deaths.erase(deaths.begin() + absent);
  for (const Death& death : deaths) check_same_death({death}, culprit, {part});
}

/// Another transport, which records until when its rank waits.
class NotingTransport final : public Transport {
 public:
  NotingTransport(std::unique_ptr<Transport> other, Clock::time_point start_deadline,
                  std::vector<Clock::time_point>& deadlines)
      : other_(std::move(other)), start_deadline_(start_deadline), deadlines_(deadlines) {}

  std::string_view name() const noexcept override { return other_->name(); }
  const Topology& topology() const noexcept override { return other_->topology(); }
  Clock::time_point start_deadline() const noexcept override { return start_deadline_; }
  void send(int peer, std::string_view message) override { other_->send(peer, message); }
  /// Nothing every other time, so that each receive() waits.
  Incoming poll() override {
    is_asked_again_ = !is_asked_again_;
    return is_asked_again_ ? Incoming() : other_->poll();
  }
  bool wait(Clock::time_point deadline, int descriptor) override {
    deadlines_.push_back(deadline);
    return other_->wait(deadline, descriptor);
  }
  void wake() noexcept override { other_->wake(); }
  void close(bool graceful, Clock::time_point deadline) override {
    other_->close(graceful, deadline);
  }
  StatsGroup stats() const override { return other_->stats(); }

 private:
  const std::unique_ptr<Transport> other_;
  const Clock::time_point start_deadline_;
  std::vector<Clock::time_point>& deadlines_;
  bool is_asked_again_ = false;
};

/// Until when the ranks of a start wait, by rank, whose transports agree on `deadline`.
std::vector<std::vector<Transport::Clock::time_point>> waits_of_a_start(
    const std::vector<int>& hosts, Transport::Clock::time_point deadline) {
  const auto size = static_cast<int>(hosts.size());
  const inproc::Group group(hosts);
  std::vector<std::vector<Transport::Clock::time_point>> waits(hosts.size());
  on_each_rank(size, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.make_transport = [&, rank, make = options.make_transport] {
      return std::make_unique<NotingTransport>(make(), deadline,
                                               waits[static_cast<std::size_t>(rank)]);
    };
    options.backends["inproc"].create = [](BackendContext& context) -> std::unique_ptr<Backend> {
      for (int i = 0; i < 3; ++i) context.exchange("more");
      throw UsageError("no backend");
    };
    return text_of<UsageError>([&] { const Runtime runtime(std::move(options)); });
  });
  return waits;
}

std::vector<int> cores_of(pthread_t thread) {
  cpu_set_t set;
  REQUIRE(pthread_getaffinity_np(thread, sizeof set, &set) == 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

/// Returns the cores of the coordinator thread of a rank started with this RONDE_THREAD_AFFINITY.
std::vector<int> cores_of_coordinator(const std::string& thread_affinity) {
  const inproc::Group group(1);
  RuntimeOptions options = options_of(group, 0);
  options.config.thread_affinity = thread_affinity;
  options.config.log_level = "warning";
  pthread_t coordinator{};
  options.make_transport = [&coordinator, make = options.make_transport] {
    coordinator = pthread_self();
    return make();
  };
  Runtime runtime(std::move(options));
  runtime.submit(barrier_request()).wait();
  const std::vector<int> cores = cores_of(coordinator);
  runtime.shutdown();
  return cores;
}

}  // namespace

TEST_CASE(
    "what keeps ranks from starting is one UsageError on every rank, with all that it takes") {
  struct Row {
    Change change;
    std::vector<std::string> parts;
  };
  const auto static_sets = [](const std::string& first, const std::string& others) -> Change {
    return [=](int rank, RuntimeOptions& options) {
      options.config.process_sets = rank == 0 ? first : others;
    };
  };
  const Row rows[] = {
      {[](int rank, RuntimeOptions& options) {
         if (rank == 2) options.config.fusion_bytes = std::uint64_t{32} << 20;
       },
       {"RONDE_FUSION_BYTES", "64MiB", "32MiB", "rank 2"}},
      {[](int rank, RuntimeOptions& options) {
         if (rank == 1) options.config_error = "RONDE_CYCLE_TIME_MS is \"fast\"";
       },
       {"RONDE_CYCLE_TIME_MS is \"fast\"", "rank 1"}},
      {[](int, RuntimeOptions& options) { options.config.cpu_backend = "carrier-pigeon"; },
       {"carrier-pigeon", "auto, inproc"}},
      {[](int, RuntimeOptions& options) {
         options.config.cpu_backend = "inproc";
         options.backends["inproc"].suits = [](const Topology&) { return false; };
       },
       {"no backend 'inproc'", "suits these ranks"}},
      {[](int rank, RuntimeOptions& options) {
         if (rank == 1) options.config.thread_affinity = "0";
       },
       {"RONDE_THREAD_AFFINITY", "rank 1"}},
      {static_sets("0,9", "0,9"), {"rank 9 of the process set of ranks 0,9 does not exist"}},
      {static_sets("0,0", "0,0"), {"rank 0 comes twice"}},
      {static_sets("0;1", "0"), {"RONDE_PROCESS_SETS"}}};
  for (const Row& row : rows) {
    const inproc::Group group(3);
    const auto texts = on_each_rank(3, [&](int rank) {
      RuntimeOptions options = options_of(group, rank);
      row.change(rank, options);
      return text_of<UsageError>([&] { const Runtime runtime(std::move(options)); });
    });
    for (const std::string& text : texts) {
      CHECK(text == texts[0]);
      for (const std::string& part : row.parts) CHECK_THAT(text, Catch::Contains(part));
    }
  }
}

TEST_CASE("a runtime takes the best backend that suits, and knows its place and its parts") {
  const int other_host = GENERATE(7, 8);
  const inproc::Group group(std::vector<int>{7, other_host, other_host});
  run_ranks(3, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.log_level = rank == 0 ? "off" : "error";  // may differ between ranks
    options.config.cycle_time_ms = 0.25;
    BackendFactory better = group.backend_factory();
    better.priority = 5;
    BackendFactory best = better;
    best.priority = 9;
    best.suits = [](const Topology& topology) { return topology.size > 3; };
    std::vector<std::string> blobs;
    better.create = [&, create = better.create](BackendContext& context) {
      blobs = context.exchange("from " + std::to_string(context.topology->rank));
      return create(context);
    };
    options.backends["better"] = better;
    options.backends["best"] = best;
    Runtime runtime(std::move(options));
    check_equal(blobs, std::vector<std::string>{"from 0", "from 1", "from 2"},
                "what they exchange");
    check(runtime.backend_name(DeviceKind::Cpu) == "better", "the best that suits");
    check(runtime.backend_name(DeviceKind::Cuda).empty(), "no backend for GPUs");
    check(runtime.topology().rank == rank && runtime.topology().size == 3, "the place");
    check(runtime.topology().hosts() == (other_host == 7 ? 1 : 2), "hosts");
    check(runtime.config().cycle_time_ms == 0.25, "configuration");
    check(runtime.transport_name() == "inproc", "transport");
    runtime.shutdown();
  });
}

TEST_CASE("the coordinator thread runs on the core that RONDE_THREAD_AFFINITY gives it") {
  const std::vector<int> mine = cores_of(pthread_self());
  for (const int core : {mine.front(), mine.back()}) {
    CHECK(cores_of_coordinator(std::to_string(core)) == std::vector<int>{core});
  }
  CHECK(cores_of(pthread_self()) == mine);
  CHECK(cores_of_coordinator("") == mine);
}

TEST_CASE("a core that does not exist leaves the coordinator unpinned, with a warning") {
  const CapturedErrors errors;
  CHECK(cores_of_coordinator("1000") == cores_of(pthread_self()));
  CHECK_THAT(errors.text(), Catch::Contains("RONDE_THREAD_AFFINITY") &&
                                Catch::Contains("cannot run on core 1000") &&
                                Catch::Contains("it stays unpinned"));
}

TEST_CASE("a rank that never starts is named on all others") {
  const auto short_limit = [](int, RuntimeOptions& options) { options.config.init_timeout_s = 4; };
  for (const int missing : {1, 2}) {
    check_start_fails(inproc::Group(3), 3, missing, missing, "RONDE_INIT_TIMEOUT_S", short_limit);
  }
  check_start_fails(inproc::Group(2), 2, 0, 0, "rank 0 did not complete initialisation",
                    short_limit);
}

TEST_CASE("ranks give up a start one after the other, at the same times in all of its exchanges") {
  const auto begin = Transport::Clock::now();
  const auto agreed = begin + std::chrono::seconds(10);
  const auto never = Transport::Clock::time_point::max();
  for (const bool has_agreed : {true, false}) {
    const auto waits = waits_of_a_start({0, 1, 1}, has_agreed ? agreed : never);
    std::vector<std::vector<Transport::Clock::time_point>> limits;
    for (const auto& of_rank : waits) {
      const std::set<Transport::Clock::time_point> different(of_rank.begin(), of_rank.end());
      limits.emplace_back(different.begin(), different.end());
    }
    REQUIRE((limits[0].size() == 1 && limits[1].size() == 2 && limits[2].size() == 1));
    // Rank 1 gives up rank 2, and rank 0 gives up both, before rank 1 gives up rank 0.
    const auto [below, above] = std::pair(limits[1].front(), limits[1].back());
    const std::vector in_turn = {below, limits[0].front(), above, limits[2].front()};
    if (!has_agreed) continue;  // each by its own deadline
    CHECK(std::ranges::adjacent_find(in_turn, std::greater_equal{}) == in_turn.end());
    // The caller gives up 4 s after the deadline.
    CHECK(in_turn.back() < agreed + std::chrono::seconds(4));
    CHECK(in_turn.front() > agreed);
  }
}

TEST_CASE("a rank that hangs while its backend is made is named on all ranks, itself too") {
  const inproc::Group group(std::vector<int>{0, 1, 1});
  const auto has_given_up = std::make_shared<std::latch>(1);
  std::barrier together(3);
  const std::vector<Death> deaths = on_each_rank(3, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.init_timeout_s = 4;
    if (rank == 2) {
      options.backends["inproc"].create = [=](BackendContext&) -> std::unique_ptr<Backend> {
        has_given_up->wait();
        throw UsageError("nobody is there any more");
      };
    }
    together.arrive_and_wait();
    const Death death = death_of([&] { const Runtime runtime(std::move(options)); });
    if (rank == 2) has_given_up->count_down();
    return death;
  });
  for (const Death& death : deaths) CHECK(death.rank == 2);
  CHECK_THAT(deaths[0].text, Catch::Contains("rank 2 did not complete initialisation"));
  CHECK(deaths[1].text == deaths[0].text);
  CHECK_THAT(deaths[2].text, Catch::Contains("rank 2 did not finish making backend 'inproc'"));
}

TEST_CASE("a rank that dies before the others have met is named on all of them") {
  for (const auto& hosts : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1, 0, 2}}) {
    const auto size = static_cast<int>(hosts.size());
    for (int victim = 0; victim < size; ++victim) {
      inproc::Group group(hosts);
      group.kill(victim);
      check_start_fails(group, size, victim, victim, "lost during initialisation");
    }
  }
}

TEST_CASE("a backend that cannot be made on one rank is reported on all") {
  const inproc::Group group(std::vector<int>{0, 1, 1});
  const auto change = [](int rank, RuntimeOptions& options) {
    auto faults = std::make_shared<Faults>();
    if (rank == 2) faults->fail_create("no such device");
    options.backends["inproc"] = faulty_factory(options.backends["inproc"], faults);
  };
  check_start_fails(group, 3, -1, 2, "rank 2 cannot start its backend: no such device", change);
}

TEST_CASE("a transport that cannot be made fails its rank with its own error") {
  RuntimeOptions options;
  options.config = test_config();
  options.make_transport = []() -> std::unique_ptr<Transport> {
    throw UsageError("started by a foreign launcher");
  };
  CHECK_THROWS_WITH(Runtime(std::move(options)), "started by a foreign launcher");
}

TEST_CASE("255 ranks of one host start, and negotiate every step") {
  constexpr int kRanks = 255;
  const CapturedErrors errors;
  const inproc::Group group(kRanks);
  run_ranks(kRanks, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.freeze_after_steps = 1;
    // This many threads take long on a slow machine.
    options.config.init_timeout_s = options.config.shutdown_timeout_s = 60.0;
    if (rank == 0) options.config.log_level = "debug";
    Runtime runtime(std::move(options));
    for (int step = 0; step < 4; ++step) {
      std::vector<float> values = {1.0F};
      runtime.submit(sum_request(values, "sum")).wait();
      check_equal(values[0], static_cast<float>(kRanks), "the sum");
    }
    runtime.shutdown();
  });
  CHECK_THAT(errors.text(), Catch::Contains("no schedule is frozen: it serves at most 254 ranks"));
}

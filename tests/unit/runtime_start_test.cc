// SPDX-License-Identifier: Apache-2.0
// How runtimes meet, and what keeps them from it.
#include <pthread.h>
#include <sched.h>

#include <barrier>
#include <catch2/catch.hpp>

#include "ronde/error.h"
#include "tests/support/captured_errors.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// The GroupErrors with which ranks start whose options `change` may alter. Ranks that `comes` says
/// no to do not come; the others begin their start together, so that a short limit passes for the
/// absent ones alone.
std::vector<Death> group_errors(
    const inproc::Group& group, int size, const std::function<bool(int)>& comes,
    const std::function<void(int, RuntimeOptions&)>& change = [](int, RuntimeOptions&) {}) {
  std::ptrdiff_t coming = 0;
  for (int rank = 0; rank < size; ++rank) coming += comes(rank) ? 1 : 0;
  std::barrier together(coming);
  std::vector<Death> deaths(static_cast<std::size_t>(size));
  run_ranks(size, [&](int rank) {
    if (!comes(rank)) return;
    RuntimeOptions options = options_of(group, rank);
    change(rank, options);
    together.arrive_and_wait();
    deaths[static_cast<std::size_t>(rank)] =
        death_of([&] { const Runtime runtime(std::move(options)); });
  });
  return deaths;
}

/// All ranks but `absent` blame it, with `part` in the text.
void check_blamed(const std::vector<Death>& deaths, int absent, const std::string& part) {
  for (std::size_t rank = 0; rank < deaths.size(); ++rank) {
    if (static_cast<int>(rank) == absent) continue;
    CAPTURE(absent, rank);
    CHECK(deaths[rank].rank == absent);
    CHECK_THAT(deaths[rank].text, Catch::Contains(part));
  }
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

/// Those of the coordinator thread of a rank that is started with this RONDE_THREAD_AFFINITY.
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
    std::function<void(int rank, RuntimeOptions& options)> change;
    std::vector<std::string> parts;
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
       {"RONDE_THREAD_AFFINITY", "rank 1"}}};
  for (const Row& row : rows) {
    const inproc::Group group(3);
    std::vector<std::string> texts(3);
    run_ranks(3, [&](int rank) {
      RuntimeOptions options = options_of(group, rank);
      row.change(rank, options);
      std::string& text = texts[static_cast<std::size_t>(rank)];
      text = text_of<UsageError>([&] { const Runtime runtime(std::move(options)); });
      for (const std::string& part : row.parts) check_contains(text, part);
    });
    for (const std::string& text : texts) CHECK(text == texts[0]);
  }
}

TEST_CASE("a variable that each rank may set by itself may differ") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.log_level = rank == 0 ? "off" : "error";
    Runtime runtime(std::move(options));
    runtime.shutdown();
  });
}

TEST_CASE("of the backends that suit, the one of the highest priority is taken") {
  const inproc::Group group(2);
  run_ranks(2, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    BackendFactory better = group.backend_factory();
    better.priority = 5;
    BackendFactory best = better;
    best.priority = 9;
    best.suits = [](const Topology& topology) { return topology.size > 2; };
    options.backends["better"] = better;
    options.backends["best"] = best;
    Runtime runtime(std::move(options));
    check(runtime.backend_name(DeviceKind::Cpu) == "better", "the best that suits");
    check(runtime.backend_name(DeviceKind::Cuda).empty(), "no backend for GPUs");
    runtime.shutdown();
  });
}

TEST_CASE("a runtime knows its place, its configuration and its parts") {
  const inproc::Group group(std::vector<int>{7, 7, 8});
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.cycle_time_ms = 0.25;
    Runtime runtime(options_of(group, rank, config));
    check(runtime.topology().rank == rank, "rank");
    check(runtime.topology().size == 3, "size");
    check(runtime.topology().hosts() == 2, "hosts");
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

TEST_CASE("a rank that never comes is named on all that did") {
  const auto short_limit = [](int, RuntimeOptions& options) { options.config.init_timeout_s = 1; };
  for (const int missing : {1, 2}) {
    const inproc::Group group(3);
    check_blamed(group_errors(
                     group, 3, [&](int rank) { return rank != missing; }, short_limit),
                 missing, "RONDE_INIT_TIMEOUT_S");
  }
  const inproc::Group group(2);
  check_blamed(group_errors(
                   group, 2, [](int rank) { return rank != 0; }, short_limit),
               0, "rank 0 did not complete initialisation");
}

TEST_CASE("a rank that dies before the others have met is named on all of them") {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1, 0, 2}}) {
    const auto size = static_cast<int>(hosts.size());
    for (int victim = 0; victim < size; ++victim) {
      inproc::Group group(hosts);
      group.kill(victim);
      check_blamed(group_errors(group, size, [&](int rank) { return rank != victim; }), victim,
                   "lost during initialisation");
    }
  }
}

TEST_CASE("a backend that cannot be made on one rank is told on all") {
  const inproc::Group group(std::vector<int>{0, 1, 1});
  const auto everybody = [](int) { return true; };
  const auto deaths = group_errors(group, 3, everybody, [](int rank, RuntimeOptions& options) {
    auto faults = std::make_shared<Faults>();
    if (rank == 2) faults->fail_create("no such device");
    options.backends["inproc"] = faulty_factory(options.backends["inproc"], faults);
  });
  for (const Death& death : deaths) {
    CHECK(death == deaths[0]);
    CHECK(death.rank == 2);
    CHECK_THAT(death.text, Catch::Contains("rank 2 cannot start its backend: no such device"));
  }
}

TEST_CASE("a transport that cannot be made fails its rank with its own error") {
  RuntimeOptions options;
  options.config = test_config();
  options.make_transport = []() -> std::unique_ptr<Transport> {
    throw UsageError("started by a foreign launcher");
  };
  CHECK_THROWS_WITH(Runtime(std::move(options)), "started by a foreign launcher");
}

TEST_CASE("backends exchange blobs while they are made") {
  const inproc::Group group(GENERATE(std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1}));
  run_ranks(3, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    const auto inner = options.backends["inproc"].create;
    std::vector<std::string> blobs;
    options.backends["inproc"].create = [&](BackendContext& context) {
      blobs = context.exchange("from " + std::to_string(context.topology->rank));
      return inner(context);
    };
    Runtime runtime(std::move(options));
    check(blobs == std::vector<std::string>{"from 0", "from 1", "from 2"}, "in rank order");
    runtime.shutdown();
  });
}

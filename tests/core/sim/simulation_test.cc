// SPDX-License-Identifier: Apache-2.0
#include "ronde/simulation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "tests/core/sim/steps.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde {
namespace {

using namespace std::chrono_literals;
using test::config_of_steps;
using test::counter_of;
using test::end_of;
using test::hosts;
using test::kTensors;
using test::request_of;
using test::Steps;

auto tuple_of(const SimulatedMessage& message) {
  return std::tuple(message.from, message.to, message.bytes, message.is_control, message.sent,
                    message.arrived);
}

TEST_CASE("two simulations of the same program are equal") {
  const auto simulate = [](bool in_parts) {
    Steps steps(hosts(3, 2), 4);
    for (auto time = 0ns; in_parts && !steps.simulation->run(time); time += 7us) {
      CHECK(steps.simulation->now() == time);
    }
    CHECK(steps.simulation->run());
    std::vector<decltype(tuple_of({}))> messages;
    for (const SimulatedMessage& message : steps.messages) messages.push_back(tuple_of(message));
    return messages;
  };
  const auto messages = simulate(false);
  CHECK(messages.size() > 50);
  CHECK(simulate(false) == messages);
  CHECK(simulate(true) == messages);
}

TEST_CASE("a simulation can be left at any time") {
  for (auto time = 0us; time < 400us; time += 29us) {
    Steps steps(hosts(2, 2), 4);
    CHECK_FALSE(steps.simulation->run(time));
  }
}

/// Counters that do not depend on time, of some ranks as threads and simulated.
void compare_with_threads(const std::vector<int>& host_of) {
  constexpr int kSteps = 8;
  const std::vector<std::pair<std::string, std::string>> names = {
      {"submission", "operations"},
      {"submission", "bytes"},
      {"coordinator", "ready_messages"},
      {"response_cache", "hits"},
      {"response_cache", "misses"},
      {"execution", "buckets"},
      {"execution", "tensors"},
      {"execution", "fused_tensors"},
      {"execution", "largest_bucket_bytes"},
      {"execution", "bytes"}};
  std::vector<std::vector<std::uint64_t>> real(host_of.size());
  test::run_on(
      host_of,
      [&](int rank, Runtime& runtime) {
        std::vector<std::vector<float>> values;
        for (int i = 0; i < kTensors; ++i) values.emplace_back(request_of(i).shape[0]);
        for (int step = 0; step < kSteps; ++step) {
          std::vector<Work> works;
          for (int i = 0; i < kTensors; ++i) {
            works.push_back(runtime.submit(
                test::sum_request(values[static_cast<std::size_t>(i)], request_of(i).name)));
          }
          for (const Work& work : works) work.wait();
        }
        runtime.shutdown();
        for (const auto& [part, name] : names) {
          real[static_cast<std::size_t>(rank)].push_back(counter_of(runtime, part, name));
        }
      },
      config_of_steps());
  Steps steps(host_of, kSteps);
  REQUIRE(steps.simulation->run());
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      INFO("rank " << rank << ": " << names[i].first << "." << names[i].second);
      CHECK(steps.counter(static_cast<int>(rank), names[i].first, names[i].second) ==
            real[rank][i]);
    }
  }
}

TEST_CASE("a simulation counts what ranks as threads count") {
  compare_with_threads(hosts(1, 3));
  compare_with_threads(hosts(3, 2));
}

TEST_CASE("one host freezes its schedule, and then sends nothing") {
  Steps few(hosts(1, 4), 10);
  CHECK(few.simulation->run());
  CHECK(few.counter(3, "schedule", "freezes") == 1);
  const std::size_t messages = few.messages.size();
  few.simulation.reset();
  Steps many(hosts(1, 4), 40);
  CHECK(many.simulation->run());
  CHECK(many.messages.size() == messages);
}

TEST_CASE("between up to 33 hosts the control plane sends to and from rank 0 alone") {
  Steps steps(hosts(33, 5), 2);
  CHECK(steps.simulation->started() == 0ns);
  CHECK(steps.simulation->run());
  CHECK(steps.simulation->started() > 0ns);
  CHECK(steps.step_of(164) == 2);
  const auto is_elsewhere = [](const SimulatedMessage& message) {
    return message.is_control && message.from / 5 != message.to / 5 &&
           std::min(message.from, message.to) != 0;
  };
  CHECK(std::ranges::none_of(steps.messages, is_elsewhere));
  CHECK(steps.simulation->engine_time(0) > steps.simulation->engine_time(164));
}

TEST_CASE("all survivors of a death get the same error") {
  const int victim = GENERATE(0, 3, 5);
  Steps steps(hosts(2, 3), 4);
  steps.deviate(victim, 2, [&] { steps.simulation->kill(victim); });
  CHECK(steps.simulation->run());
  for (int rank = 0; rank < 6; ++rank) {
    if (rank == victim) continue;
    INFO("rank " << rank);
    CHECK(steps.step_of(rank) == 2);
    CHECK(steps.end(rank).failed_rank == victim);
    CHECK(steps.end(rank).text == end_of(steps.simulation->failure(rank)).text);
    // Of a leader the ranks of its host see the end of the process, others that of a connection.
    if (victim == 5) CHECK(steps.end(rank).text == steps.end(0).text);
  }
  CHECK_THROWS_AS(steps.submit(victim), UsageError);
}

TEST_CASE("a death during the start fails it") {
  Steps steps(hosts(2, 2), 1);
  steps.simulation->kill(3);
  CHECK(steps.simulation->run());
  CHECK(end_of(steps.simulation->failure(0)).failed_rank == 3);
  CHECK(steps.simulation->started() == 0ns);
}

Config impatient_config() {
  Config config = config_of_steps();
  config.stall_warn_s = 5;
  config.stall_abort_s = 20;
  return config;
}

TEST_CASE("a rank that is stopped stalls the others until it goes on") {
  const bool goes_on = GENERATE(true, false);
  Steps steps(hosts(2, 2), 4, impatient_config());
  steps.deviate(3, 2, [&] {
    steps.simulation->stop(3);
    if (!goes_on) return;
    steps.simulation->at(steps.simulation->now() + 12s, [&] {
      steps.simulation->go_on(3);
      steps.submit(3);
    });
  });
  CHECK(steps.simulation->run() == goes_on);
  CHECK(steps.told_of_stall.size() == (goes_on ? 4 : 3));
  REQUIRE(!steps.stalls.empty());
  CHECK(ranks_in(steps.stalls.front().missing_ranks) == std::vector{3});
  CHECK(steps.stalls.front().name == "t0");
  CHECK(steps.step_of(0) == (goes_on ? 4 : 2));
  if (goes_on) return;
  CHECK(steps.simulation->now() > 20s);
  CHECK(steps.end(0).failed_rank == 3);
  CHECK(steps.end(1).text == steps.end(0).text);
  CHECK(steps.end(2).text == steps.end(0).text);
}

TEST_CASE("a simulation whose ranks wait for what never comes says so") {
  Config config = impatient_config();
  config.stall_abort_s = 0;
  Steps steps(hosts(1, 3), 4, config);
  steps.deviate(1, 2, [] {});
  const std::string text = test::text_of<Error>([&] { steps.simulation->run(); });
  test::check_contains(text, "ranks 0,2 for operations; rank 1 for calls of the program");
  CHECK(steps.told_of_stall == std::set{0, 1, 2});
}

TEST_CASE("a simulation refuses what it cannot simulate") {
  const auto refusal = [](const std::function<void(SimulationOptions&)>& change) {
    SimulationOptions options;
    options.config = test::test_config();
    options.host_of = {0, 0, 1};
    change(options);
    return test::text_of<UsageError>([&] { const Simulation simulation(std::move(options)); });
  };
  using Options = SimulationOptions;
  test::check_contains(refusal([](Options& options) { options.host_of = {0, 2}; }), "host_of");
  test::check_contains(refusal([](Options& options) { options.host_of = {}; }), "host_of");
  test::check_contains(refusal([](Options& options) { options.host.round = -1; }), "cost");
  test::check_contains(refusal([](Options& options) { options.config.verify = true; }),
                       "RONDE_VERIFY");
  Steps steps({0, 0}, 1);
  test::check_contains(refusal([](Options&) {}), "one Simulation at a time");
  const auto submit = [&](Request request) {
    return test::text_of<UsageError>(
        [&] { steps.simulation->submit(0, std::move(request), [](std::exception_ptr) {}); });
  };
  test::check_contains(submit(request_of(0)), "has not started");
  CHECK(steps.simulation->run(steps.simulation->started() + 200us));
  Request average = request_of(0);
  average.op = ReduceOp::Average;
  average.dtype = DataType::I32;
  test::check_contains(submit(std::move(average)), "averages of integers");
  test::check_contains(submit(test::barrier_request("b")), "only allreduces and broadcasts");
  CHECK_THROWS_AS(steps.simulation->kill(2), UsageError);
}

}  // namespace
}  // namespace ronde

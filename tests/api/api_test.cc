// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>

#include "ronde/ronde.h"
#include "ronde/run.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

// Most cases need a process of their own: MPI starts once in a process, and what is registered
// stays registered.

namespace {

using Catch::Contains;
using ronde::test::text_of;

/// Every function of ronde.h that needs the group, by the name that it says when there is none.
std::vector<std::pair<std::string, std::function<void()>>> group_functions() {
  return {{"ronde::rank()", [] { ronde::rank(); }},
          {"ronde::size()", [] { ronde::size(); }},
          {"ronde::local_rank()", [] { ronde::local_rank(); }},
          {"ronde::local_size()", [] { ronde::local_size(); }},
          {"ronde::cross_rank()", [] { ronde::cross_rank(); }},
          {"ronde::cross_size()", [] { ronde::cross_size(); }},
          {"ronde::is_homogeneous()", [] { ronde::is_homogeneous(); }},
          {"ronde::topology()", [] { ronde::topology(); }},
          {"ronde::add_process_set()", [] { ronde::add_process_set({0}); }},
          {"ronde::create_process_set()", [] { ronde::create_process_set({0}); }},
          {"ronde::remove_process_set()", [] { ronde::remove_process_set({1}); }},
          {"ronde::process_sets()", [] { ronde::process_sets(); }},
          {"ronde::ranks_of()", [] { ronde::ranks_of({0}); }},
          {"ronde::rank_in()", [] { ronde::rank_in({0}); }},
          {"ronde::default_runtime()", [] { ronde::default_runtime(); }},
          {"ronde::Grid()",
           [] {
             static_cast<void>(ronde::Grid({1, 1}));
           }},
          {"ronde::submit()", [] { ronde::submit({}); }},
          {"ronde::submit_group()", [] { ronde::submit_group({}); }},
          {"ronde::run()", [] { ronde::run({}); }},
          {"ronde::barrier()", [] { ronde::barrier(); }},
          {"ronde::barrier()", [] { ronde::barrier_async(); }},
          {"ronde::join()", [] { ronde::join(); }},
          {"ronde::join()", [] { ronde::join_async(); }},
          {"ronde::abort()", [] { ronde::abort("no reason"); }},
          {"ronde::stats()", [] { ronde::stats(); }}};
}

/// All of them say that they were called `when`, and what to do about it.
void check_need_the_group(const std::string& when, const std::string& advice) {
  CHECK_FALSE(ronde::is_initialized());
  for (const auto& [name, call] : group_functions()) {
    INFO(name);
    CHECK_THAT(text_of<ronde::UsageError>(call),
               Contains(name + " was called " + when) && Contains(advice));
  }
  CHECK_NOTHROW(ronde::shutdown());  // nothing to leave
}

ronde::BackendFactory some_factory() {
  ronde::BackendFactory factory;
  factory.create = [](ronde::BackendContext&) -> std::unique_ptr<ronde::Backend> {
    throw ronde::Error("never made");
  };
  return factory;
}

TEST_CASE("every function says that it was called before init, or after shutdown", "[own]") {
  check_need_the_group("before ronde::init()", "call ronde::init()");
  ronde::init();
  CHECK(ronde::is_initialized());
  ronde::shutdown();
  check_need_the_group("after ronde::shutdown()", "ronde::shutdown()");
}

TEST_CASE("a program may ask at any time what its Ronde can do") {
  for (const char* const always : {"shm", "key_value", "streams"}) {
    INFO(always);
    CHECK(ronde::has_feature(always));
  }
  const bool has_mpi = RONDE_MPI_IS_LINKED != 0;
  for (const char* const of_mpi : {"mpi", "mpi_communicator"}) {
    INFO(of_mpi);
    CHECK(ronde::has_feature(of_mpi) == has_mpi);
  }
  CHECK(ronde::has_feature("hierarchical") == (has_mpi || ronde::has_feature("ucx")));
  for (const char* const of_gpu : {"cuda", "nccl"}) {
    INFO(of_gpu);
    const bool is_there = dlopen("libcuda.so.1", RTLD_LAZY) != nullptr &&
                          (std::string(of_gpu) == "cuda" || dlopen("libnccl.so.2", RTLD_LAZY));
    // What is there may be too old, or Ronde built without kernels.
    CHECK((is_there || !ronde::has_feature(of_gpu)));
    CHECK((ronde::feature_version(of_gpu) >= 10000) == ronde::has_feature(of_gpu));
  }
  CHECK(ronde::feature_version("shm") == 1);
  for (const char* const never : {"", "MPI", "mpi,shm", "quantum"}) {
    INFO(never);
    CHECK_FALSE(ronde::has_feature(never));
    CHECK(ronde::feature_version(never) == 0);
  }
}

TEST_CASE("without a launcher there is one rank and collectives work", "[own]") {
  ronde::init();
  CHECK(ronde::rank() == 0);
  CHECK(ronde::size() == 1);
  CHECK(ronde::local_rank() == 0);
  CHECK(ronde::local_size() == 1);
  CHECK(ronde::cross_rank() == 0);
  CHECK(ronde::cross_size() == 1);
  CHECK_THAT(text_of<ronde::UsageError>([] { ronde::init(); }),
             Contains("ronde::init() was called twice") && Contains("is_initialized"));
  CHECK(ronde::is_initialized());  // the first one stays
  std::vector<float> values = {1, 2, 3};
  ronde::Request request = ronde::test::sum_request(values, "values");
  request.postscale = 2;
  ronde::submit(std::move(request)).wait();
  CHECK(values == std::vector<float>{2, 4, 6});
  ronde::barrier();
  CHECK(ronde::join() == 0);
  ronde::shutdown();
}

TEST_CASE("a program starts without a launcher, again and again, with sets of its own", "[own]") {
  // A set of an earlier start is not taken for one of this.
  // Launchers that are none of Ronde's business.
  setenv("PMI_SIZE", "4", 1);
  setenv("WORLD_SIZE", "4", 1);
  ronde::InitOptions options;
  options.key_value = ronde::KeyValueStart{};
  options.process_sets = {{0}};
  std::vector<ronde::ProcessSet> earlier;
  for (int start = 0; start < 2; ++start) {
    ronde::init(options);
    CHECK(ronde::size() == 1);
    CHECK(ronde::is_homogeneous());
    const std::vector<ronde::ProcessSet> sets = ronde::process_sets();
    REQUIRE(sets.size() == 2);
    CHECK(sets[0] == ronde::kGlobalSet);
    ronde::barrier({.process_set = sets[1]});
    for (const ronde::ProcessSet& set : earlier) {
      CHECK_THAT(text_of<ronde::UsageError>([&] { ronde::barrier({.process_set = set}); }),
                 Contains("does not exist here"));
    }
    earlier.push_back(sets[1]);
    ronde::shutdown();
  }
  CHECK(earlier[0] == ronde::ProcessSet{1});
  options.mpi_ranks = {0};
  CHECK_THAT(text_of<ronde::UsageError>([&] { ronde::init(options); }),
             Contains("choose how the ranks meet"));
  CHECK_FALSE(ronde::is_initialized());
}

TEST_CASE("stats is a JSON object of parts with counters", "[own]") {
  ronde::init();
  const auto before = nlohmann::json::parse(ronde::stats());
  ronde::barrier();
  auto after = nlohmann::ordered_json::parse(ronde::stats());
  REQUIRE(after.is_object());
  CHECK(after.begin().key() == "layout_version");
  CHECK(after.at("layout_version") == ronde::kStatsLayoutVersion);
  after.erase("layout_version");
  CHECK(after.at("figures").at("operations").at("count") == 1);
  after.erase("figures");
  for (const auto& [part, counters] : after.items()) {
    INFO(part);
    REQUIRE(counters.is_object());
    for (const auto& [counter, value] : counters.items()) {
      INFO(counter);
      CHECK(value.is_number_unsigned());
    }
  }
  CHECK(after.at("submission").at("operations") ==
        before.at("submission").at("operations").get<int>() + 1);
  CHECK(after.contains("negotiation"));
  CHECK(after.contains("response_cache"));
  ronde::shutdown();
}

TEST_CASE("init hooks run in order, on the thread that called init, with the group ready",
          "[own]") {
  std::vector<std::string> calls;
  std::thread::id thread;
  ronde::add_init_hook([&](ronde::Runtime& runtime) {
    calls.emplace_back("first");
    thread = std::this_thread::get_id();
    CHECK(&runtime == &ronde::default_runtime());
    CHECK(ronde::size() == runtime.topology().size);
    ronde::barrier();
  });
  ronde::add_init_hook([&](ronde::Runtime&) { calls.emplace_back("second"); });
  CHECK(calls.empty());
  ronde::init();
  CHECK(calls == std::vector<std::string>{"first", "second"});
  CHECK(thread == std::this_thread::get_id());
  ronde::shutdown();
  CHECK_THROWS_AS(ronde::add_init_hook({}), ronde::UsageError);
}

TEST_CASE("an init hook that shuts down is the last one that runs", "[own]") {
  bool runs_on = false;
  ronde::add_init_hook([](ronde::Runtime&) { ronde::shutdown(); });
  ronde::add_init_hook([&](ronde::Runtime&) { runs_on = true; });
  ronde::init();
  CHECK_FALSE(runs_on);
  CHECK_FALSE(ronde::is_initialized());
}

TEST_CASE("a hook that throws fails init", "[own]") {
  ronde::add_init_hook([](ronde::Runtime&) { throw std::runtime_error("hook failed"); });
  CHECK_THROWS_WITH(ronde::init(), "hook failed");
  CHECK_FALSE(ronde::is_initialized());
  CHECK_THAT(text_of<ronde::UsageError>([] { ronde::rank(); }), Contains("before ronde::init()"));
}

TEST_CASE("hooks of shutdown run before it, and what they throw comes after it", "[own]") {
  std::string order;
  ronde::add_shutdown_hook([&] {
    order += "first ";
    ronde::barrier();
    throw std::runtime_error("not saved");
  });
  const auto removed = ronde::add_shutdown_hook([&] { order += "removed "; });
  ronde::add_shutdown_hook([&] { order += "last "; });
  ronde::remove_shutdown_hook(removed);
  ronde::init();
  // In a callback shutdown() is refused, and changes nothing.
  std::string refused;
  while (refused.empty()) {
    std::promise<std::string> told;
    const ronde::Work work = ronde::barrier_async();
    work.on_done([&, program = std::this_thread::get_id()] {
      const bool is_own = std::this_thread::get_id() == program;
      told.set_value(is_own ? "" : text_of<ronde::UsageError>([] { ronde::shutdown(); }));
    });
    refused = told.get_future().get();
  }
  CHECK(order.empty());
  CHECK(ronde::is_initialized());
  CHECK_THAT(refused, Contains("was called in a callback of an operation"));
  CHECK(text_of<std::runtime_error>([] { ronde::shutdown(); }) == "not saved");
  CHECK(order == "first last ");
  CHECK_FALSE(ronde::is_initialized());
  CHECK_NOTHROW(ronde::shutdown());
  CHECK(order == "first last ");
}

TEST_CASE("a failed init leaves everything as before it", "[own]") {
  setenv("RONDE_CYCLE_TIME_MS", "fast", 1);
  CHECK_THAT(text_of<ronde::UsageError>([] { ronde::init(); }),
             Contains("rank 0: RONDE_CYCLE_TIME_MS: \"fast\""));
  CHECK_FALSE(ronde::is_initialized());
  CHECK_THAT(text_of<ronde::UsageError>([] { ronde::rank(); }), Contains("before ronde::init()"));
  CHECK_NOTHROW(ronde::register_backend("late", some_factory()));
  CHECK_NOTHROW(ronde::set_stall_callback({}));
}

TEST_CASE("a name that no backend has is refused with those that there are", "[own]") {
  setenv("RONDE_CPU_BACKEND", "quantum", 1);
  ronde::register_backend("mine", some_factory());
  ronde::BackendFactory for_gpus = some_factory();
  for_gpus.device = ronde::DeviceKind::Cuda;
  ronde::register_backend("gpus", std::move(for_gpus));
  const std::string text = text_of<ronde::UsageError>([] { ronde::init(); });
  CHECK_THAT(text, Contains("RONDE_CPU_BACKEND: there is no backend \"quantum\"") &&
                       Contains("use one of: auto") && Contains("mine"));
  CHECK_THAT(text, !Contains("gpus"));
}

TEST_CASE("backends are registered under free names, before init", "[own]") {
  ronde::register_backend("mine", some_factory());
  const auto refusal = [](const std::string& name, const ronde::BackendFactory& factory) {
    return text_of<ronde::UsageError>([&] { ronde::register_backend(name, factory); });
  };
  CHECK_THAT(refusal("mine", some_factory()), Contains("\"mine\" is taken"));
  for (const char* const name : {"auto", RONDE_MPI_IS_LINKED != 0 ? "mpi" : "shm"}) {
    CHECK_THAT(refusal(name, some_factory()), Contains("taken by Ronde"));
  }
  CHECK_THAT(refusal("My Own", some_factory()),
             Contains("\"My Own\" is not the name of a backend"));
  CHECK_THAT(refusal("empty", {}), Contains("no create function"));
  ronde::init();
  CHECK_THAT(refusal("later", some_factory()), Contains("after ronde::init()"));
  CHECK_THAT(text_of<ronde::UsageError>([] { ronde::set_stall_callback({}); }),
             Contains("after ronde::init()"));
  ronde::shutdown();
}

TEST_CASE("other threads may call in while one shuts down", "[own]") {
  ronde::init();
  std::atomic<int> working = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&working, name = "of thread " + std::to_string(i)] {
      bool counted = false;
      try {
        for (;;) {
          ronde::size();
          ronde::stats();
          ronde::barrier({.name = name});
          if (!counted) ++working;
          counted = true;
        }
      } catch (const ronde::Error&) {
        // Refused by the Runtime while it stops, and by the functions afterwards.
      }
    });
  }
  while (working < 3) std::this_thread::yield();
  try {
    ronde::shutdown();
  } catch (const ronde::GroupError& error) {
    FAIL("shutdown failed: " << error.what());
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(ronde::is_initialized());
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi_environment.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "backends/mpi/mpi_transport.h"
#include "ronde/error.h"
#include "tests/support/fakes/fake_mpi.h"
#include "tests/support/ranks/ranks.h"

namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using ronde::Error;
using ronde::GroupError;
using ronde::UsageError;
using ronde::mpi::Clock;
using ronde::mpi::MpiMembership;
using ronde::mpi::MpiUse;
using ronde::mpi::testing::FakeMpi;
using ronde::test::text_of;

}  // namespace

TEST_CASE("a failing MPI call becomes an error with its name, code and native text") {
  FakeMpi fake;
  fake.codes["comm_rank"] = 5;
  const auto environment = fake.environment();
  CHECK_THAT(text_of<Error>([&] { environment->join(); }),
             Contains("MPI_Comm_rank failed with code 5: native text of 5"));
}

TEST_CASE("the native text is the MPI library's own, once that is initialised", "[own]") {
  const auto text = [] { return failure_text(ronde::mpi::MpiApi{}, "MPI_Ibcast", MPI_ERR_COUNT); };
  CHECK(text() == "MPI_Ibcast failed with code " + std::to_string(MPI_ERR_COUNT));
  REQUIRE(MPI_Init(nullptr, nullptr) == MPI_SUCCESS);
  CHECK_THAT(text(), Contains("MPI_Ibcast failed with code") && Contains("count"));
  MPI_Finalize();
}

TEST_CASE("MPI is initialised at serialised thread level and finalised when all have left") {
  FakeMpi fake;
  const auto environment = fake.environment();
  MpiMembership transport(environment);
  MpiMembership backend(environment);
  CHECK(fake.wanted_level == MPI_THREAD_SERIALIZED);
  CHECK(fake.calls["init_thread"] == 1);
  backend.leave(true);
  CHECK(fake.calls["finalize"] == 0);
  transport.leave(true);
  CHECK(fake.calls["finalize"] == 1);
  transport.leave(true);
  CHECK(fake.calls["finalize"] == 1);
}

TEST_CASE("MPI is not finalised after a failure") {
  FakeMpi fake;
  const auto environment = fake.environment();
  SECTION("one left without grace, the other gracefully") {
    MpiMembership transport(environment);
    MpiMembership backend(environment);
    backend.leave(false);
    transport.leave(true);
  }
  SECTION("a member was destroyed without leaving") {
    MpiMembership transport(environment);
    { const MpiMembership backend(environment); }
    transport.leave(true);
  }
  SECTION("operations were abandoned") {
    MpiMembership transport(environment);
    environment->abandon();
    transport.leave(true);
  }
  CHECK(fake.calls["finalize"] == 0);
}

TEST_CASE("after a failed init MPI can be joined again and is then finalised") {
  FakeMpi fake;
  const auto environment = fake.environment();
  { const MpiMembership failed(environment); }
  MpiMembership second(environment);
  second.leave(true);
  CHECK(fake.calls["init_thread"] == 1);
  CHECK(fake.calls["finalize"] == 1);
}

TEST_CASE("an MPI library without thread support is refused") {
  FakeMpi fake;
  fake.provided = MPI_THREAD_FUNNELED;
  const auto environment = fake.environment();
  // MPI is initialised by the first attempt; the second must not take that for enough.
  for (const char* const attempt : {"first", "second"}) {
    CAPTURE(attempt);
    CHECK_THAT(text_of<UsageError>([&] { environment->join(); }),
               Contains("needs MPI_THREAD_SERIALIZED") &&
                   Contains("provides only MPI_THREAD_FUNNELED") && Contains("Fake MPI 1.0"));
  }
  CHECK(fake.calls["init_thread"] == 1);
}

TEST_CASE("a program that initialised MPI itself must have asked for MPI_THREAD_MULTIPLE") {
  FakeMpi fake;
  fake.initialized = true;
  const auto environment = fake.environment();
  SECTION("less is refused and says what to change") {
    fake.provided = MPI_THREAD_SERIALIZED;
    CHECK_THAT(text_of<UsageError>([&] { environment->join(); }),
               Contains("initialised MPI with MPI_THREAD_SERIALIZED") &&
                   Contains("MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...)"));
  }
  SECTION("MULTIPLE is joined, and the program finalises") {
    fake.provided = MPI_THREAD_MULTIPLE;
    MpiMembership member(environment);
    member.leave(true);
    CHECK(fake.calls["init_thread"] == 0);
    CHECK(fake.calls["finalize"] == 0);
    CHECK(fake.calls["comm_set_errhandler"] == 0);  // the world's handler is the program's
  }
}

TEST_CASE("who may only meet by the program's MPI calls it on the thread that may") {
  FakeMpi fake;
  fake.initialized = true;
  const auto environment = fake.environment();
  const auto [level, is_main, name] = GENERATE(table<int, bool, std::string>({
      {MPI_THREAD_SINGLE, true, "MPI_THREAD_SINGLE"},
      {MPI_THREAD_SINGLE, false, "MPI_THREAD_SINGLE"},
      {MPI_THREAD_FUNNELED, false, "MPI_THREAD_FUNNELED"},
      {MPI_THREAD_SERIALIZED, false, "MPI_THREAD_SERIALIZED"},
  }));
  fake.provided = level;
  fake.is_thread_main = is_main;
  CHECK(environment->of_program().low_level == name);
  const auto join = [&] { environment->join({}, MpiUse::ToMeet); };
  if (is_main || level == MPI_THREAD_SERIALIZED) {
    CHECK_NOTHROW(join());
  } else {
    CHECK_THAT(text_of<UsageError>(join), Contains("initialised MPI with " + name) &&
                                              Contains("call ronde::init() on that thread"));
  }
}

TEST_CASE("what Ronde initialised, and what has ended, is no MPI of the program") {
  FakeMpi fake;
  const auto environment = fake.environment();
  CHECK_FALSE(environment->of_program().is_there);  // not initialised
  const MpiMembership member(environment);          // initialises it with SERIALIZED
  CHECK_FALSE(environment->of_program().is_there);
  FakeMpi of_program;
  of_program.initialized = true;
  of_program.provided = MPI_THREAD_MULTIPLE;
  CHECK(of_program.environment()->of_program().is_there);
  CHECK(of_program.environment()->of_program().low_level.empty());
  of_program.finalized = true;  // no question is allowed any more
  CHECK_FALSE(of_program.environment()->of_program().is_there);
  CHECK(of_program.calls["query_thread"] == 2);
}

TEST_CASE("MPI_Finalize of the program first calls who still needs MPI, which is then not called") {
  const bool is_of_program = GENERATE(true, false);
  FakeMpi fake;
  fake.initialized = is_of_program;
  fake.provided = MPI_THREAD_MULTIPLE;
  const auto environment = fake.environment();
  MpiMembership member(environment);
  MPI_Request request = MPI_REQUEST_NULL;
  int calls = 0;
  environment->on_program_finalize([&] {
    ++calls;
    CHECK(environment->test(request));
    member.leave(true);
  });
  fake.finalize_by_program();
  CHECK(calls == 1);
  CHECK(fake.calls["finalize"] == 0);
  CHECK_THAT(text_of<Error>([&] { environment->test(request); }),
             Contains("has called MPI_Finalize() before ronde::shutdown()"));
}

TEST_CASE("MPI_Finalize of the program calls nobody who needs MPI no more") {
  FakeMpi fake;
  fake.initialized = true;
  fake.provided = MPI_THREAD_MULTIPLE;
  const auto environment = fake.environment();
  MpiMembership member(environment);
  environment->on_program_finalize([] { FAIL("called"); });
  environment->on_program_finalize(nullptr);
  member.leave(true);
  fake.finalize_by_program();
  FakeMpi other;
  other.initialized = true;
  const auto of_other = other.environment();
  const MpiMembership meets(of_other, {}, MpiUse::ToMeet);
  CHECK_FALSE(other.finalize_by_program);
}

TEST_CASE("a finalised MPI cannot be joined") {
  FakeMpi fake;
  fake.finalized = true;
  const auto environment = fake.environment();
  CHECK_THAT(text_of<UsageError>([&] { environment->join(); }),
             Contains("MPI is finalised in this process") && Contains("(again)"));
}

TEST_CASE("a foreign launcher is refused by variable, value and library") {
  FakeMpi fake;
  const auto [name, value] = GENERATE(table<std::string, std::string>({
      {"PMI_SIZE", "4"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"SLURM_NTASKS", "16"},
      {"PMIX_RANK", "1"},
      {"WORLD_SIZE", "2"},
  }));
  fake.variables[name] = value;
  const auto environment = fake.environment();
  CHECK_THAT(text_of<UsageError>([&] { environment->join(); }),
             Contains("(" + name + "=" + value + ")") && Contains("Fake MPI 1.0") &&
                 !Contains("built for tests") && Contains("unset " + name));
}

TEST_CASE("torchrun is refused also where srun started it once a node") {
  FakeMpi fake;
  fake.variables = {{"PMI_SIZE", "1"},   {"SLURM_NTASKS", "1"}, {"TORCHELASTIC_RUN_ID", "none"},
                    {"WORLD_SIZE", "2"}, {"RANK", "0"},         {"LOCAL_RANK", "0"}};
  const auto environment = fake.environment();
  CHECK_THAT(text_of<UsageError>([&] { environment->join(); }), Contains("(WORLD_SIZE=2)"));
}

TEST_CASE("one rank alone, or several that MPI knows of, are no foreign launcher's work") {
  using Variables = std::map<std::string, std::string>;
  const auto [size, variables] = GENERATE(table<int, Variables>({
      {1, Variables{}},
      {1, Variables{{"PMI_SIZE", "1"}}},
      {1, Variables{{"SLURM_NTASKS", "8"}, {"PMI_SIZE", "1"}}},     // mpiexec -n 1 inside a job
      {1, Variables{{"PMI_SIZE", "4(x2)"}, {"SLURM_NTASKS", ""}}},  // no numbers
      {1, Variables{{"PMIX_RANK", "0"}}},                           // perhaps the first of several
      {1, Variables{{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"TORCHELASTIC_RUN_ID", "none"}}},
      {1,
       Variables{{"WORLD_SIZE", "4"}, {"PMI_SIZE", "1"}}},  // mpiexec -n 1, the other is left over
      {4, Variables{{"PMI_SIZE", "4"}}},
      {4, Variables{{"WORLD_SIZE", "4"}, {"PMI_SIZE", "4"}}},
      {4, Variables{{"WORLD_SIZE", "4"}, {"RANK", "0"}, {"TORCHELASTIC_RUN_ID", "none"}}},
  }));
  FakeMpi fake;
  fake.size = size;
  fake.variables = variables;
  const auto environment = fake.environment();
  CHECK_NOTHROW(environment->join());
}

TEST_CASE("chosen ranks need an MPI that the program has initialised") {
  FakeMpi fake;
  const auto environment = fake.environment();
  CHECK_THAT(text_of<UsageError>([&] { environment->join({.of_world = {0}}); }),
             Contains("MPI is not initialised") && Contains("before ronde::init()"));
  CHECK(fake.calls["init_thread"] == 0);
}

TEST_CASE("a communicator of chosen ranks is freed by the last who leaves, unless a rank died") {
  const bool is_graceful = GENERATE(true, false);
  FakeMpi fake;
  fake.initialized = true;
  fake.provided = MPI_THREAD_MULTIPLE;
  fake.variables = {{"PMI_SIZE", "4"}};  // alone on purpose
  const auto environment = fake.environment();
  MpiMembership transport(environment, {.of_world = {0}});
  MpiMembership backend(environment);  // has the same
  CHECK(fake.calls["comm_create_group"] == 1);
  CHECK(fake.calls["group_free"] == 2);
  transport.leave(is_graceful);
  CHECK(fake.calls["comm_free"] == 0);
  backend.leave(true);
  CHECK(fake.calls["comm_free"] == (is_graceful ? 1 : 0));
  CHECK(fake.calls["finalize"] == 0);
}

TEST_CASE("the communicator of a program stays, and what MPI says of a wrong one is told") {
  FakeMpi fake;
  fake.initialized = true;
  fake.provided = MPI_THREAD_MULTIPLE;
  const auto environment = fake.environment();
  {
    MpiMembership member(environment, {.communicator = 7});
    member.leave(true);
  }
  CHECK(fake.calls["comm_free"] == 0);
  CHECK(fake.calls["comm_set_errhandler"] == 4);  // to return errors, and back, for two
  fake.codes["comm_test_inter"] = 5;
  CHECK_THAT(text_of<UsageError>([&] { environment->join({.communicator = 7}); }),
             Contains("Fortran handle 7 cannot be used: MPI_Comm_test_inter failed with code 5"));
  CHECK(fake.calls["comm_set_errhandler"] == 8);
}

TEST_CASE("bootstrap that never ends is a group error within its deadline") {
  FakeMpi fake;
  fake.size = 3;
  const auto environment = fake.environment();
  const MpiMembership member(environment);
  fake.requests_finish = false;
  const auto start = Clock::now();
  SECTION("duplicating the communicator") {
    CHECK_THAT(text_of<GroupError>([&] { environment->duplicate(start + 50ms); }),
               Contains("rank 0 waited") && Contains("all 3 ranks to duplicate"));
  }
  SECTION("making the transport") {
    const auto make = [&] { ronde::mpi::MpiTransport(environment, {.init_timeout_s = 0.05}); };
    CHECK_THAT(text_of<GroupError>(make), Contains("at least one has not called ronde::init()"));
  }
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE("the launcher's variables tell whether all ranks share this host") {
  std::map<std::string, std::string> variables;
  const auto lookup = [&](const std::string& name) {
    const auto entry = variables.find(name);
    return entry == variables.end() ? std::nullopt : std::optional(entry->second);
  };
  CHECK(ronde::mpi::launched_on_one_host(lookup) == std::nullopt);
  variables = {{"PMI_SIZE", "4"}};
  CHECK(ronde::mpi::launched_on_one_host(lookup) == std::nullopt);
  variables["MPI_LOCALNRANKS"] = "2";
  CHECK(ronde::mpi::launched_on_one_host(lookup) == false);
  variables["MPI_LOCALNRANKS"] = "4";
  CHECK(ronde::mpi::launched_on_one_host(lookup) == true);
  variables = {{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}};
  CHECK(ronde::mpi::launched_on_one_host(lookup) == true);
}

TEST_CASE("UCX is told what suits ranks of one host, or of several without RDMA") {
  std::map<std::string, std::string> variables = {{"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}};
  const auto variable = [&](bool has_rdma) {
    const auto lookup = [&](const std::string& name) {
      const auto entry = variables.find(name);
      return entry == variables.end() ? std::nullopt : std::optional(entry->second);
    };
    const auto [name, value] = ronde::mpi::variable_for_ucx(lookup, has_rdma);
    return name == nullptr ? "" : std::string(name) + "=" + value;
  };
  CHECK(variable(false) == "UCX_RNDV_THRESH=1m");
  CHECK(variable(true) == "");
  variables["MPI_LOCALNRANKS"] = "4";
  CHECK(variable(false) == "UCX_TLS=^cma,tcp");
  variables.clear();
  CHECK(variable(false) == "");
}

TEST_CASE("calls of MPI are wrapped for as long as somebody wants that") {
  FakeMpi fake;
  const auto environment = fake.environment();
  MPI_Request request = MPI_REQUEST_NULL;
  std::string order;
  const auto around = [&](const std::string& begin, const std::string& end) {
    return environment->wrap_calls([&, begin, end](const std::function<void()>& call) {
      order += begin;
      call();
      order += end;
    });
  };
  const auto call = [&] {
    order.clear();
    environment->call("a call", [&] { return order += "call", MPI_SUCCESS; });
    return order;
  };
  CHECK(call() == "call");
  auto outer = around("<", ">");
  CHECK(call() == "<call>");
  const auto inner = around("(", ")");
  CHECK(call() == "<(call)>");
  order.clear();
  CHECK(environment->test(request));
  CHECK(order == "<()>");
  outer.reset();
  CHECK(call() == "(call)");
}

TEST_CASE("what wraps a call of MPI can fail it, and lets its own error through") {
  FakeMpi fake;
  const auto environment = fake.environment();
  int calls = 0;
  const auto count = [&] { return ++calls, 5; };
  {
    const auto wrapped =
        environment->wrap_calls([](const std::function<void()>&) { throw Error("no context"); });
    CHECK(text_of<Error>([&] { environment->call("a call", count); }) == "no context");
    CHECK(calls == 0);
  }
  const auto wrapped = environment->wrap_calls([](const std::function<void()>& call) { call(); });
  CHECK_THAT(text_of<Error>([&] { environment->call("a call", count); }),
             Contains("a call failed with code 5"));
  CHECK(calls == 1);
}

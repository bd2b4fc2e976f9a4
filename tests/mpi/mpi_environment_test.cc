// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi_environment.h"

#include <catch2/catch.hpp>

#include "backends/mpi/gpu_aware_mpi.h"
#include "backends/mpi/mpi_transport.h"
#include "ronde/error.h"
#include "tests/support/fakes/fake_library.h"
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

/// The MPI of a program that initialised it with MPI_THREAD_MULTIPLE.
struct MpiOfProgram : FakeMpi {
  MpiOfProgram() {
    initialized = true;
    provided = MPI_THREAD_MULTIPLE;
  }
};

/// Returns whether a library with these functions reports that it takes no addresses of GPUs.
bool denies(const ronde::test::Functions& functions) {
  ronde::mpi::GpuSupportApi api;
  CHECK(api.load(ronde::test::library_of(functions), ronde::vendor::kThisProcess).empty());
  return denies_cuda(api);
}

}  // namespace

TEST_CASE("a failing MPI call becomes an error with its name, code and native text") {
  FakeMpi fake;
  fake.codes["comm_rank"] = 5;
  CHECK_THAT(text_of<Error>([&] { fake.environment()->join(); }),
             Contains("MPI_Comm_rank failed with code 5: native text of 5"));
}

TEST_CASE("the native text is the MPI library's own, once that is initialised", "[own]") {
  const auto text = [] { return failure_text(ronde::mpi::MpiApi{}, "MPI_Ibcast", MPI_ERR_COUNT); };
  CHECK(text() == "MPI_Ibcast failed with code " + std::to_string(MPI_ERR_COUNT));
  REQUIRE(MPI_Init(nullptr, nullptr) == MPI_SUCCESS);
  CHECK_THAT(text(), Contains("MPI_Ibcast failed with code") && Contains("count"));
  MPI_Finalize();
}

TEST_CASE("MPI is initialised once, at serialised level, and finalised when all have left") {
  FakeMpi fake;
  const auto environment = fake.environment();
  { const MpiMembership failed(environment); }  // an init that failed
  MpiMembership transport(environment);
  MpiMembership backend(environment);
  CHECK(fake.wanted_level == MPI_THREAD_SERIALIZED);
  CHECK(fake.calls["init_thread"] == 1);
  backend.leave(true);
  CHECK(fake.calls["finalize"] == 0);
  transport.leave(true);
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

TEST_CASE("an MPI library without thread support is refused") {
  FakeMpi fake;
  fake.provided = MPI_THREAD_FUNNELED;
  const auto environment = fake.environment();
  // The first attempt initialises MPI; the second must not accept that.
  for (const char* const attempt : {"first", "second"}) {
    CAPTURE(attempt);
    CHECK_THAT(text_of<UsageError>([&] { environment->join(); }),
               Contains("needs MPI_THREAD_SERIALIZED") &&
                   Contains("provides only MPI_THREAD_FUNNELED") && Contains("Fake MPI 1.0"));
  }
  CHECK(fake.calls["init_thread"] == 1);
}

TEST_CASE("a join that cannot work is refused with what to change") {
  FakeMpi low, finalized, fresh;
  low.initialized = true;
  low.provided = MPI_THREAD_SERIALIZED;
  finalized.finalized = true;
  const auto refusal = [](FakeMpi& fake, const ronde::MpiRanks& ranks = {}) {
    return text_of<UsageError>([&] { fake.environment()->join(ranks); });
  };
  CHECK_THAT(refusal(low), Contains("initialised MPI with MPI_THREAD_SERIALIZED") &&
                               Contains("MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...)"));
  CHECK_THAT(refusal(finalized),
             Contains("MPI is finalised in this process") && Contains("(again)"));
  CHECK_THAT(refusal(fresh, {.of_world = {0}}),
             Contains("MPI is not initialised") && Contains("before ronde::init()"));
  CHECK(fresh.calls["init_thread"] == 0);
}

TEST_CASE("an MPI that the program initialised with MPI_THREAD_MULTIPLE is joined and left alone") {
  MpiOfProgram fake;
  MpiMembership member(fake.environment());
  member.leave(true);
  CHECK(fake.calls["init_thread"] == 0);
  CHECK(fake.calls["finalize"] == 0);
  CHECK(fake.calls["comm_set_errhandler"] == 0);  // the world's handler is the program's
}

TEST_CASE("ranks that only meet over the program's MPI call it on the thread that may") {
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
  MpiOfProgram of_program;
  CHECK(of_program.environment()->of_program().is_there);
  CHECK(of_program.environment()->of_program().low_level.empty());
  of_program.finalized = true;  // no question is allowed any more
  CHECK_FALSE(of_program.environment()->of_program().is_there);
  CHECK(of_program.calls["query_thread"] == 2);
}

TEST_CASE("MPI_Finalize of the program first shuts Ronde down, which then calls MPI no more") {
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

TEST_CASE("MPI_Finalize of the program calls nothing once Ronde has left MPI") {
  MpiOfProgram fake;
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

TEST_CASE("a foreign launcher is refused by variable, value and library") {
  using Variables = std::map<std::string, std::string>;
  const auto [variables, name] = GENERATE(table<Variables, std::string>({
      {Variables{{"PMI_SIZE", "4"}}, "PMI_SIZE"},
      {Variables{{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_SIZE"},
      {Variables{{"SLURM_NTASKS", "16"}}, "SLURM_NTASKS"},
      {Variables{{"PMIX_RANK", "1"}}, "PMIX_RANK"},
      {Variables{{"WORLD_SIZE", "2"}}, "WORLD_SIZE"},
      // srun started torchrun once a node.
      {Variables{{"PMI_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "none"}, {"WORLD_SIZE", "2"}},
       "WORLD_SIZE"},
  }));
  FakeMpi fake;
  fake.variables = variables;
  CHECK_THAT(text_of<UsageError>([&] { fake.environment()->join(); }),
             Contains("(" + name + "=" + variables.at(name) + ")") && Contains("Fake MPI 1.0") &&
                 !Contains("built for tests") && Contains("unset " + name));
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
      {1, Variables{{"WORLD_SIZE", "4"}, {"PMI_SIZE", "1"}}},  // mpiexec -n 1: the other is old
      {4, Variables{{"PMI_SIZE", "4"}}},
      {4, Variables{{"WORLD_SIZE", "4"}, {"PMI_SIZE", "4"}}},
      {4, Variables{{"WORLD_SIZE", "4"}, {"RANK", "0"}, {"TORCHELASTIC_RUN_ID", "none"}}},
  }));
  FakeMpi fake;
  fake.size = size;
  fake.variables = variables;
  CHECK_NOTHROW(fake.environment()->join());
}

TEST_CASE("a communicator of chosen ranks is freed by the last who leaves, unless a rank died") {
  const bool is_graceful = GENERATE(true, false);
  MpiOfProgram fake;
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

TEST_CASE("the communicator of a program stays, and MPI's text for an invalid one is passed on") {
  MpiOfProgram fake;
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
    const auto make = [&] { ronde::mpi::MpiTransport(environment, {{.init_timeout_s = 0.05}}); };
    CHECK_THAT(text_of<GroupError>(make), Contains("at least one has not called ronde::init()"));
  }
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE("UCX gets what suits ranks of one host, or of several without RDMA") {
  using Variables = std::map<std::string, std::string>;
  const auto variable = [](const Variables& variables, bool has_rdma) {
    const auto lookup = [&](const std::string& name) {
      const auto entry = variables.find(name);
      return entry == variables.end() ? std::nullopt : std::optional(entry->second);
    };
    const auto [name, value] = ronde::mpi::variable_for_ucx(lookup, has_rdma);
    return name == nullptr ? "" : std::string(name) + "=" + value;
  };
  const Variables two_hosts = {{"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}};
  CHECK(variable(two_hosts, false) == "UCX_RNDV_THRESH=1m");
  CHECK(variable(two_hosts, true) == "");
  const Variables by_open_mpi = {{"OMPI_COMM_WORLD_SIZE", "8"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}};
  for (const Variables& one_host : {{{"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}}, by_open_mpi}) {
    CHECK(variable(one_host, false) == "UCX_TLS=^cma,tcp");
  }
  CHECK(variable({}, false) == "");
  CHECK(variable({{"PMI_SIZE", "4"}}, false) == "");
}

TEST_CASE("whether MPI claims to take cuda addresses") {
  const char* const of_mpich = "MPIX_GPU_query_support";
  const char* const of_open_mpi = "MPIX_Query_cuda_support";
  void* const yes =
      ronde::test::address(+[](int kind, int* supported) { return *supported = kind == 0, 0; });
  void* const no = ronde::test::address(+[](int, int* supported) { return *supported = 0, 0; });
  void* const fails = ronde::test::address(+[](int, int* supported) { return *supported = 1, 15; });
  void* const open_yes = ronde::test::address(+[] { return 1; });
  void* const open_no = ronde::test::address(+[] { return 0; });
  CHECK_FALSE(denies({}));  // the user knows
  CHECK_FALSE(denies({{of_mpich, yes}}));
  CHECK(denies({{of_mpich, no}}));
  CHECK(denies({{of_mpich, fails}}));
  CHECK_FALSE(denies({{of_open_mpi, open_yes}}));
  CHECK(denies({{of_open_mpi, open_no}}));
  // The function that takes a kind of GPU has precedence.
  CHECK(denies({{of_mpich, no}, {of_open_mpi, open_yes}}));
}

// SPDX-License-Identifier: Apache-2.0
// What an MPI library says of GPUs, and what is made of it.
#include <catch2/catch.hpp>
#include <string>

#include "backends/mpi/gpu_support.h"
#include "tests/support/fakes/fake_library.h"

namespace {

using ronde::test::address;

/// Why a process with these functions takes no addresses of GPUs.
std::string refusal_of(const ronde::test::Functions& functions) {
  ronde::mpi::GpuSupportApi api;
  const std::string problem =
      api.load(ronde::test::library_of(functions), ronde::vendor::kThisProcess);
  CHECK(problem.empty());
  return why_not_cuda(api);
}

TEST_CASE("whether MPI claims to take cuda addresses") {
  const char* const of_mpich = "MPIX_GPU_query_support";
  const char* const of_open_mpi = "MPIX_Query_cuda_support";
  void* const yes = address(+[](int kind, int* supported) { return *supported = kind == 0, 0; });
  void* const no = address(+[](int, int* supported) { return *supported = 0, 0; });
  void* const fails = address(+[](int, int* supported) { return *supported = 1, 15; });
  void* const open_yes = address(+[] { return 1; });
  void* const open_no = address(+[] { return 0; });
  const std::string kNo = "the MPI library says that it takes no addresses of GPUs";
  CHECK_THAT(refusal_of({}), Catch::Contains("does not say"));
  CHECK(refusal_of({{of_mpich, yes}}).empty());
  CHECK(refusal_of({{of_mpich, no}}) == kNo);
  CHECK(refusal_of({{of_mpich, fails}}) == kNo);
  CHECK(refusal_of({{of_open_mpi, open_yes}}).empty());
  CHECK(refusal_of({{of_open_mpi, open_no}}) == kNo);
  // The one that is asked for a kind knows better.
  CHECK(refusal_of({{of_mpich, no}, {of_open_mpi, open_yes}}) == kNo);
}

}  // namespace

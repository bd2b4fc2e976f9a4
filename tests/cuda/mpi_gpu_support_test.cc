// SPDX-License-Identifier: Apache-2.0
// What an MPI library says of GPUs, and what is made of it.
#include <catch2/catch.hpp>
#include <string>

#include "backends/mpi/gpu_support.h"
#include "tests/support/fake_library.h"

namespace {

using ronde::mpi::GpuClaim;
using ronde::test::address;

/// What a process with these functions claims.
GpuClaim claim_of(const ronde::test::Functions& functions) {
  ronde::mpi::GpuSupportApi api;
  const std::string problem =
      api.load(ronde::test::library_of(functions), ronde::vendor::kThisProcess);
  CHECK(problem.empty());
  return claimed_cuda_support(api);
}

TEST_CASE("whether MPI claims to take cuda addresses") {
  const char* const of_mpich = "MPIX_GPU_query_support";
  const char* const of_open_mpi = "MPIX_Query_cuda_support";
  void* const yes = address(+[](int kind, int* supported) { return *supported = kind == 0, 0; });
  void* const no = address(+[](int, int* supported) { return *supported = 0, 0; });
  void* const fails = address(+[](int, int* supported) { return *supported = 1, 15; });
  void* const open_yes = address(+[] { return 1; });
  void* const open_no = address(+[] { return 0; });
  CHECK(claim_of({}) == GpuClaim::None);
  CHECK(claim_of({{of_mpich, yes}}) == GpuClaim::Yes);
  CHECK(claim_of({{of_mpich, no}}) == GpuClaim::No);
  CHECK(claim_of({{of_mpich, fails}}) == GpuClaim::No);
  CHECK(claim_of({{of_open_mpi, open_yes}}) == GpuClaim::Yes);
  CHECK(claim_of({{of_open_mpi, open_no}}) == GpuClaim::No);
  // The one that is asked for a kind knows better.
  CHECK(claim_of({{of_mpich, no}, {of_open_mpi, open_yes}}) == GpuClaim::No);
  CHECK(to_string(GpuClaim::No) == "says that it takes no addresses of GPUs");
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Vendors' functions, found at run time: what is missing, too old or failing is said.
#include <catch2/catch.hpp>
#include <string>

#include "backends/gpu/driver/driver_api.h"
#include "backends/vendor/api_table.h"
#include "tests/support/fakes/fake_library.h"
#include "tests/support/fakes/fake_nccl.h"

namespace {

using Catch::Contains;
using ronde::test::address;
using ronde::test::kNoLibrary;
using ronde::test::library_with;
using ronde::vendor::SymbolLookup;
using Symbols = ronde::test::Functions;

Symbols good_driver() {
  return {
      {"cuInit", address(+[](unsigned) { return 0; })},
      {"cuDriverGetVersion", address(+[](int* version) { return *version = 13000, 0; })},
      {"cuGetErrorName",
       address(+[](int, const char** text) { return *text = "CUDA_ERROR_X", 0; })},
      {"cuGetErrorString", address(+[](int, const char** text) { return *text = "no luck", 0; })}};
}

/// Returns the symbols of a library of NCCL of this version.
template <int kVersion>
Symbols nccl() {
  return {{"ncclGetVersion", address(+[](int* version) { return *version = kVersion, 0; })},
          {"ncclGetErrorString", address(+[](int) { return "remote process exited"; })},
          {"ncclGetLastError", address(+[](void*) { return "socket closed"; })}};
}

TEST_CASE("the cuda driver is found and asked for its version, and may be initialised") {
  const auto driver = ronde::cuda::load_driver(library_with(good_driver()));
  CHECK(driver.problem.empty());
  CHECK(driver.version == 13000);
  REQUIRE(driver.api);
  CHECK(driver.api->ipc_open_memory);
  Symbols symbols = good_driver();
  symbols.erase("cuInit");  // is there, and aborts
  const auto found = ronde::cuda::find_driver(library_with(symbols));
  CHECK(found.version == 13000);
  CHECK(found.api);
  CHECK(ronde::cuda::find_driver(kNoLibrary).version == 0);
}

TEST_CASE("a cuda driver that is missing, too old, or fails is not used, and why is said") {
  const auto problem = [](const SymbolLookup& lookup) {
    const auto driver = ronde::cuda::load_driver(lookup);
    CHECK_FALSE(driver.api);
    return driver.problem;
  };
  CHECK(problem(kNoLibrary) == "libcuda.so.1: cannot open shared object file");
  CHECK(problem(library_with(good_driver(), {"cuIpcOpenMemHandle_v2", "cuMemFree_v2"})) ==
        "libcuda.so.1 lacks cuMemFree_v2, cuIpcOpenMemHandle_v2");
  const auto problem_of = [&](const Symbols& faults) {
    Symbols symbols = good_driver();
    for (const auto& [name, function] : faults) symbols[name] = function;
    return problem(library_with(symbols));
  };
  CHECK(problem_of({{"cuDriverGetVersion", address(+[](int* v) { return *v = 11080, 0; })}}) ==
        "the CUDA driver is of CUDA 11.8, Ronde needs that of 12.0 or newer. Install a newer "
        "driver");
  CHECK(problem_of({{"cuDriverGetVersion", address(+[](int*) { return 3; })}}) ==
        "cuDriverGetVersion: CUDA_ERROR_X: no luck (3)");
  CHECK(problem_of({{"cuInit", address(+[](unsigned) { return 100; })}}) ==
        "cuInit: CUDA_ERROR_X: no luck (100)");
  CHECK(problem_of({{"cuGetErrorName", address(+[](int, const char**) { return 1; })},
                    {"cuGetErrorString",
                     address(+[](int, const char** text) { return *text = nullptr, 0; })},
                    {"cuInit", address(+[](unsigned) { return 12345; })}}) ==
        "cuInit: unknown error: unknown error (12345)");
}

TEST_CASE("a cuda call that fails throws what it was about, its name and the driver's words") {
  Symbols symbols = good_driver();
  symbols["cuMemFree_v2"] = address(+[](ronde::cuda::DevicePointer pointer) {
    return pointer == 0 ? ronde::cuda::kSuccess : 400;
  });
  const auto driver = ronde::cuda::load_driver(library_with(symbols));
  REQUIRE(driver.api);
  const auto& api = *driver.api;
  check(api, "freeing nothing", api.free, ronde::cuda::DevicePointer{0});
  CHECK_THROWS_WITH(
      check(api, "freeing a buffer", api.free, ronde::cuda::DevicePointer{1}),
      "CUDA failed while freeing a buffer: cuMemFree_v2: CUDA_ERROR_X: no luck (400)");
}

TEST_CASE("nccl is found, with what its version has beyond the least") {
  const auto newest = ronde::nccl::load_nccl(library_with(nccl<22809>()));
  CHECK(newest.problem.empty());
  CHECK(newest.version == 22809);
  REQUIRE(newest.api);
  CHECK(newest.api->has_windows());
  const auto oldest =
      ronde::nccl::load_nccl(library_with(nccl<21903>(), {"ncclCommWindowDeregister"}));
  REQUIRE(oldest.api);
  CHECK_FALSE(oldest.api->has_windows());
}

TEST_CASE("an nccl that is missing, too old or lacks a function is not used, and why is said") {
  const auto problem = [](const SymbolLookup& lookup, bool was_found) {
    const auto nccl = ronde::nccl::load_nccl(lookup);
    CHECK_FALSE(nccl.api);
    CHECK(nccl.was_found == was_found);
    return nccl.problem;
  };
  CHECK(problem(kNoLibrary, false) == "libnccl.so.2: cannot open shared object file");
  CHECK(problem(library_with(nccl<21805>(), {"ncclCommInitRankConfig"}), true) ==
        "libnccl.so.2 is NCCL 2.18.5, Ronde needs 2.19.0 or newer. Install a newer one");
  CHECK(problem(library_with(nccl<22000>(), {"ncclCommFinalize", "ncclMemAlloc"}), true) ==
        "libnccl.so.2 lacks ncclCommFinalize, ncclMemAlloc");
  Symbols mute = nccl<22000>();
  mute["ncclGetVersion"] = address(+[](int*) { return 3; });
  CHECK(problem(library_with(mute), true) == "ncclGetVersion: error 3");
  const auto elsewhere = ronde::nccl::load_nccl(kNoLibrary, "/opt/nccl/libnccl.so");
  CHECK(elsewhere.problem == "/opt/nccl/libnccl.so: cannot open shared object file");
}

TEST_CASE("an nccl call that fails throws its words, and the communicator's") {
  const auto library = ronde::nccl::load_nccl(library_with(nccl<22809>()));
  REQUIRE(library.api);
  const auto text = [&](ronde::nccl::Communicator communicator) {
    return std::string(ronde::nccl::NcclError(*library.api, "ncclAllReduce",
                                              ronde::nccl::kRemoteError, communicator,
                                              "reducing 3 tensors")
                           .what());
  };
  const std::string plain =
      "NCCL failed while reducing 3 tensors: ncclAllReduce: remote process exited (6)";
  CHECK(text(nullptr) == plain);
  int memory = 0;
  CHECK(text(reinterpret_cast<ronde::nccl::Communicator>(&memory)) == plain + ": socket closed");
}

TEST_CASE("the dynamic loader's words about cuda or any library are passed on") {
  const SymbolLookup lookup = ronde::vendor::dynamic_symbols();
  std::string error;
  CHECK(lookup("libc.so.6", "getpid", error) != nullptr);
  CHECK(error.empty());
  CHECK(lookup("libno-such-thing.so.9", "f", error) == nullptr);
  CHECK_THAT(error, Contains("libno-such-thing.so.9"));
  CHECK(lookup("libc.so.6", "no_such_function_in_it", error) == nullptr);
  CHECK_THAT(error, Contains("no_such_function_in_it"));
}

}  // namespace

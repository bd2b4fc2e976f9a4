// SPDX-License-Identifier: Apache-2.0
#include "tools/vendor.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>

#include "tests/support/fakes/fake_library.h"

namespace {

using Catch::Contains;
using namespace ronde::test;

/// A driver with two GPUs.
Functions good_driver() {
  return {
      {"cuInit", address(+[](unsigned) { return 0; })},
      {"cuDriverGetVersion", address(+[](int* version) { return *version = 12040, 0; })},
      {"cuGetErrorString", address(+[](int, const char** text) { return *text = "no luck", 0; })},
      {"cuGetErrorName", address(+[](int, const char** text) { return *text = "CUDA_LUCK", 0; })},
      {"cuDeviceGetCount", address(+[](int* count) { return *count = 2, 0; })},
      {"cuDeviceGet", address(+[](int* device, int index) { return *device = 10 + index, 0; })},
      {"cuDeviceGetName", address(+[](char* name, int, int device) {
         return std::strcpy(name, device == 10 ? "Alpha" : "Beta"), 0;
       })},
      {"cuDeviceTotalMem_v2",
       address(+[](std::size_t* bytes, int) { return *bytes = std::size_t{80} << 30, 0; })},
      {"cuDeviceGetUuid_v2", address(+[](unsigned char* uuid, int) {
         for (int i = 0; i < 16; ++i) {
           uuid[i] = static_cast<unsigned char>(i * 16 + 1);
         }
         return 0;
       })},
      {"cuDeviceGetPCIBusId",
       address(+[](char* id, int, int) { return std::strcpy(id, "0000:1B:00.0"), 0; })},
  };
}

TEST_CASE("the driver's GPUs are listed") {
  const auto report = ronde::tool::ask_cuda(library_of(good_driver()));
  CHECK(report.driver.found);
  CHECK(report.driver.version == "12.4");
  CHECK(report.driver.remark.empty());
  REQUIRE(report.gpus.size() == 2);
  CHECK(report.gpus[1].index == 1);
  CHECK(report.gpus[1].name == "Beta");
  CHECK(report.gpus[1].memory_bytes == std::size_t{80} << 30);
  CHECK(report.gpus[1].uuid == "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
  CHECK(report.gpus[1].pci_id == "0000:1B:00.0");
}

TEST_CASE("a missing or older driver is not found, with the loader's words") {
  const auto none = ronde::tool::ask_cuda(library_of({}));
  CHECK_FALSE(none.driver.found);
  CHECK(none.driver.remark == "no cuInit");
  auto symbols = good_driver();
  symbols.erase("cuDeviceGetUuid_v2");
  symbols.erase("cuInit");
  CHECK(ronde::tool::ask_cuda(library_of(symbols)).driver.remark ==
        "libcuda.so.1 lacks cuInit, cuDeviceGetUuid_v2");
}

TEST_CASE("a driver that fails is reported in its own words") {
  auto symbols = good_driver();
  symbols["cuInit"] = address(+[](unsigned) { return 100; });
  const auto report = ronde::tool::ask_cuda(library_of(symbols));
  CHECK(report.driver.found);
  CHECK(report.driver.version == "12.4");
  CHECK(report.driver.remark == "cuInit: CUDA_LUCK: no luck (100)");
  CHECK(report.gpus.empty());
}

TEST_CASE("NCCL tells its version in either of its numberings") {
  const auto version = [](int (*get)(int*)) {
    return ronde::tool::ask_nccl(library_of({{"ncclGetVersion", address(get)}}));
  };
  CHECK(version(+[](int* v) { return *v = 22005, 0; }).version == "2.20.5");
  CHECK(version(+[](int* v) { return *v = 2804, 0; }).version == "2.8.4");
  const auto failed = version(+[](int*) { return 3; });
  CHECK(failed.found);
  CHECK(failed.version.empty());
  CHECK_THAT(failed.remark, Contains("ncclGetVersion") && Contains("3"));
  CHECK_FALSE(ronde::tool::ask_nccl(library_of({})).found);
}

}  // namespace

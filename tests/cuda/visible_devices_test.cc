// SPDX-License-Identifier: Apache-2.0
// RONDE_VISIBLE_DEVICES: which GPUs' memory a rank may map.
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "backends/cuda/base/visible_devices.h"
#include "backends/gpu/driver/nvml_api.h"
#include "ronde/error.h"
#include "tests/support/fakes/fake_library.h"

namespace {

using namespace ronde::cuda;
using ronde::test::address;
using ronde::test::Functions;
using ronde::test::library_of;

constexpr std::array<const char*, 3> kUuids = {"GPU-aaaa0000-0000-0000-0000-000000000000",
                                               "GPU-bbbb0000-0000-0000-0000-000000000000",
                                               "GPU-bbbb1111-0000-0000-0000-000000000000"};
constexpr NvmlResult kNoPermission = 4;
int sessions = 0;

/// NVML of a machine with three GPUs.
Functions nvml() {
  return {
      {"nvmlInit_v2", address(+[] { return ++sessions, kNvmlSuccess; })},
      {"nvmlShutdown", address(+[] { return --sessions, kNvmlSuccess; })},
      {"nvmlErrorString", address(+[](NvmlResult) { return "Insufficient Permissions"; })},
      {"nvmlDeviceGetCount_v2", address(+[](unsigned* count) { return *count = 3, kNvmlSuccess; })},
      {"nvmlDeviceGetHandleByIndex_v2", address(+[](unsigned index, NvmlDevice* device) {
         *device = reinterpret_cast<NvmlDevice>(static_cast<std::uintptr_t>(index) + 1);
         return kNvmlSuccess;
       })},
      {"nvmlDeviceGetUUID", address(+[](NvmlDevice device, char* uuid, unsigned bytes) {
         const auto index = reinterpret_cast<std::uintptr_t>(device) - 1;
         std::snprintf(uuid, bytes, "%s", kUuids.at(index));
         return kNvmlSuccess;
       })}};
}

/// Which of the three.
std::vector<bool> allowed(const VisibleDevices& devices) {
  std::vector<bool> all;
  for (const char* uuid : kUuids) all.push_back(devices.allows(uuid));
  return all;
}

std::string refusal_of(const std::vector<std::string>& entries, const Functions& functions) {
  try {
    const VisibleDevices devices(entries, library_of(functions));
  } catch (const ronde::UsageError& error) {
    return error.what();
  }
  return {};
}

using Three = std::vector<bool>;

}  // namespace

TEST_CASE("cuda visible devices: none named, all are allowed, and NVML is not asked") {
  CHECK(allowed(VisibleDevices()) == Three{true, true, true});
  CHECK(allowed(VisibleDevices({}, library_of({}))) == Three{true, true, true});
}

TEST_CASE("cuda visible devices: by UUID, and by the beginning of some") {
  CHECK(allowed(VisibleDevices({kUuids[1]}, library_of({}))) == Three{false, true, false});
  CHECK(allowed(VisibleDevices({"GPU-bbbb"}, library_of({}))) == Three{false, true, true});
  CHECK(allowed(VisibleDevices({"GPU-a", "GPU-bbbb1"}, library_of({}))) ==
        Three{true, false, true});
  CHECK(allowed(VisibleDevices({"GPU-c"}, library_of({}))) == Three{false, false, false});
}

TEST_CASE("cuda visible devices: by ordinals, which NVML knows, beside UUIDs") {
  CHECK(allowed(VisibleDevices({"0"}, library_of(nvml()))) == Three{true, false, false});
  CHECK(allowed(VisibleDevices({"2", "GPU-aaaa"}, library_of(nvml()))) == Three{true, false, true});
  CHECK(sessions == 0);
}

TEST_CASE("cuda visible devices: an ordinal of no GPU is refused") {
  CHECK(refusal_of({"3"}, nvml()) ==
        "RONDE_VISIBLE_DEVICES: there is no GPU 3: the machine has 3, counted from 0");
  CHECK_THAT(refusal_of({"0", "99"}, nvml()), Catch::Contains("there is no GPU 99"));
  CHECK_THAT(refusal_of({"0x"}, nvml()), Catch::Contains("there is no GPU 0x"));
  CHECK(sessions == 0);
}

TEST_CASE("cuda visible devices: ordinals without NVML are refused, with what to write instead") {
  const auto no_library = [](const char* library, const char*, std::string& error) -> void* {
    error = std::string(library) + ": cannot open shared object file";
    return nullptr;
  };
  CHECK_THROWS_WITH(VisibleDevices({"0"}, no_library),
                    "RONDE_VISIBLE_DEVICES: ordinals count the GPUs of the machine, which NVML "
                    "would know, but libnvidia-ml.so.1: cannot open shared object file. Write "
                    "UUIDs instead of ordinals (`nvidia-smi -L`)");
  Functions lacking = nvml();
  lacking.erase("nvmlDeviceGetUUID");
  CHECK_THAT(refusal_of({"0"}, lacking), Catch::Contains("lacks nvmlDeviceGetUUID"));
}

TEST_CASE("cuda visible devices: a GPU that NVML counts and does not show keeps its ordinal") {
  Functions hiding = nvml();
  hiding["nvmlDeviceGetHandleByIndex_v2"] = address(+[](unsigned index, NvmlDevice* device) {
    *device = reinterpret_cast<NvmlDevice>(static_cast<std::uintptr_t>(index) + 1);
    return index == 1 ? kNoPermission : kNvmlSuccess;
  });
  CHECK(allowed(VisibleDevices({"0"}, library_of(hiding))) == Three{true, false, false});
  CHECK(allowed(VisibleDevices({"2"}, library_of(hiding))) == Three{false, false, true});
  CHECK(refusal_of({"0", "1"}, hiding) ==
        "RONDE_VISIBLE_DEVICES: NVML does not show GPU 1: nvmlDeviceGetHandleByIndex_v2: "
        "Insufficient Permissions. Write UUIDs instead of ordinals (`nvidia-smi -L`)");
  CHECK_THAT(refusal_of({"3"}, hiding), Catch::Contains("the machine has 3, counted from 0"));
  CHECK(sessions == 0);
}

TEST_CASE("cuda visible devices: an NVML that fails is ended, and its words are told") {
  Functions failing = nvml();
  failing["nvmlDeviceGetUUID"] =
      address(+[](NvmlDevice, char*, unsigned) { return kNoPermission; });
  CHECK_THAT(refusal_of({"0"}, failing),
             Catch::Contains("nvmlDeviceGetUUID: Insufficient Permissions. Write UUIDs"));
  CHECK(sessions == 0);
  failing["nvmlInit_v2"] = address(+[] { return kNoPermission; });
  CHECK_THAT(refusal_of({"0"}, failing), Catch::Contains("nvmlInit_v2: Insufficient"));
  CHECK(sessions == 0);
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <latch>
#include <string>

#include "backends/gpu/driver/nvml_api.h"
#include "tests/support/fakes/fake_library.h"

namespace ronde::test {

/// NVML of a machine with two GPUs, those of FakeCuda; only what Ronde reads of them.
///
/// Thread-safety: none, but `hangs`.
struct FakeNvml {
  // nvml.h, written down again.
  static constexpr cuda::NvmlResult kFine = 0, kNotSupported = 3, kNotFound = 6, kGpuIsLost = 15;
  static constexpr int kDouble = 0, kUnsignedLongLong = 3;

  inline static const std::array<std::string, 2> kUuids = {
      "GPU-01010101-0101-0101-0101-010101010101", "GPU-02020202-0202-0202-0202-020202020202"};

  int sessions = 0;
  cuda::NvmlResult init = kFine;
  cuda::NvmlResult call = kFine;   ///< of every one that reads
  cuda::NvmlResult field = kFine;  ///< of NVLink's counters
  int field_type = kUnsignedLongLong;
  std::latch* hangs = nullptr;  ///< until it is opened, a call for the utilization hangs
};

/// The one whose functions are called.
inline FakeNvml the_nvml;

inline Functions fake_nvml() {
  static constexpr auto number_of = [](cuda::NvmlDevice device) {  // 1, 2, ...
    return reinterpret_cast<std::uintptr_t>(device);
  };
  return {
      {"nvmlInit_v2", address(+[] { return ++the_nvml.sessions, the_nvml.init; })},
      {"nvmlShutdown", address(+[] { return --the_nvml.sessions, FakeNvml::kFine; })},
      {"nvmlErrorString", address(+[](cuda::NvmlResult result) {
         return result == FakeNvml::kGpuIsLost ? "GPU is lost" : "another error";
       })},
      {"nvmlDeviceGetHandleByUUID", address(+[](const char* uuid, cuda::NvmlDevice* device) {
         const auto found = std::ranges::find(FakeNvml::kUuids, std::string(uuid));
         *device = reinterpret_cast<cuda::NvmlDevice>(found - FakeNvml::kUuids.begin() + 1);
         return found == FakeNvml::kUuids.end() ? FakeNvml::kNotFound : FakeNvml::kFine;
       })},
      {"nvmlDeviceGetUtilizationRates",
       address(+[](cuda::NvmlDevice device, cuda::NvmlUtilization* rates) {
         if (the_nvml.hangs != nullptr) the_nvml.hangs->wait();
         if (the_nvml.call == FakeNvml::kFine)
           *rates = {static_cast<unsigned>(number_of(device)) * 10, 1};
         return the_nvml.call;
       })},
      {"nvmlDeviceGetMemoryInfo", address(+[](cuda::NvmlDevice device, cuda::NvmlMemory* memory) {
         if (the_nvml.call == FakeNvml::kFine)
           *memory = {9'000'000, 8'000'000, number_of(device) << 20};
         return the_nvml.call;
       })},
      {"nvmlDeviceGetFieldValues",
       address(+[](cuda::NvmlDevice device, int count, cuda::NvmlFieldValue* values) {
         for (int i = 0; the_nvml.call == FakeNvml::kFine && i < count; ++i) {
           cuda::NvmlFieldValue& value = values[i];
           const bool is_known =
               (value.field == 138 || value.field == 139) && value.scope == 0xffffffffU;
           value.result = is_known ? the_nvml.field : FakeNvml::kNotSupported;
           value.type = the_nvml.field_type;
           if (value.result == FakeNvml::kFine)
             value.value = 1000 * number_of(device) + value.field;
         }
         return the_nvml.call;
       })}};
}

}  // namespace ronde::test

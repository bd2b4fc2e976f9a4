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

  static FakeNvml& instance() {
    static FakeNvml nvml;
    return nvml;
  }

  static cuda::NvmlResult find_gpu(const char* uuid, cuda::NvmlDevice* device) {
    const auto found = std::ranges::find(kUuids, std::string(uuid));
    *device = reinterpret_cast<cuda::NvmlDevice>(found - kUuids.begin() + 1);
    return found == kUuids.end() ? kNotFound : kFine;
  }
  /// 1, 2, ...
  static std::uintptr_t number_of(cuda::NvmlDevice device) {
    return reinterpret_cast<std::uintptr_t>(device);
  }
  static cuda::NvmlResult fill_fields(cuda::NvmlDevice device, int count,
                                      cuda::NvmlFieldValue* values) {
    const FakeNvml& nvml = instance();
    for (int i = 0; nvml.call == kFine && i < count; ++i) {
      cuda::NvmlFieldValue& value = values[i];
      const bool is_known =
          (value.field == 138 || value.field == 139) && value.scope == 0xffffffffU;
      value.result = is_known ? nvml.field : kNotSupported;
      value.type = nvml.field_type;
      if (value.result == kFine) value.value = 1000 * number_of(device) + value.field;
    }
    return nvml.call;
  }
  static cuda::NvmlResult read_utilization(cuda::NvmlDevice device, cuda::NvmlUtilization* rates) {
    if (instance().hangs != nullptr) instance().hangs->wait();
    if (instance().call == kFine) *rates = {static_cast<unsigned>(number_of(device)) * 10, 1};
    return instance().call;
  }
  static cuda::NvmlResult read_memory(cuda::NvmlDevice device, cuda::NvmlMemory* memory) {
    if (instance().call == kFine) *memory = {9'000'000, 8'000'000, number_of(device) << 20};
    return instance().call;
  }
  static const char* text_of(cuda::NvmlResult result) {
    return result == kGpuIsLost ? "GPU is lost" : "another error";
  }
};

inline Functions fake_nvml() {
  return {
      {"nvmlInit_v2",
       address(+[] { return ++FakeNvml::instance().sessions, FakeNvml::instance().init; })},
      {"nvmlShutdown", address(+[] { return --FakeNvml::instance().sessions, FakeNvml::kFine; })},
      {"nvmlErrorString", address(&FakeNvml::text_of)},
      {"nvmlDeviceGetHandleByUUID", address(&FakeNvml::find_gpu)},
      {"nvmlDeviceGetUtilizationRates", address(&FakeNvml::read_utilization)},
      {"nvmlDeviceGetMemoryInfo", address(&FakeNvml::read_memory)},
      {"nvmlDeviceGetFieldValues", address(&FakeNvml::fill_fields)}};
}

}  // namespace ronde::test

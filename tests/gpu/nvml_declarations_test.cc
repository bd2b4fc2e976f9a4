// SPDX-License-Identifier: Apache-2.0
// Ronde's declarations of NVML are compared with those of NVIDIA's pynvml (pynvml_header.py).
#include <pynvml.h>

#include <catch2/catch.hpp>
#include <cstddef>

#include "backends/gpu/driver/nvml_api.h"

namespace {

using namespace ronde::cuda;

TEST_CASE("the nvml structures and numbers that Ronde declares are those of cuda's pynvml") {
  CHECK(kNvmlSuccess == pynvml::NVML_SUCCESS);
  CHECK(kNvmlNotSupported == pynvml::NVML_ERROR_NOT_SUPPORTED);
  CHECK(kNvmlNvlinkSent == pynvml::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX);
  CHECK(kNvmlNvlinkReceived == pynvml::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX);
  const NvmlFieldValue floating = {.type = pynvml::NVML_VALUE_TYPE_DOUBLE, .result = kNvmlSuccess};
  CHECK_FALSE(floating.is_known());

  CHECK(sizeof(NvmlFieldValue) == pynvml::nvmlFieldValue_t::size);
  CHECK(offsetof(NvmlFieldValue, field) == pynvml::nvmlFieldValue_t::fieldId);
  CHECK(offsetof(NvmlFieldValue, scope) == pynvml::nvmlFieldValue_t::scopeId);
  CHECK(offsetof(NvmlFieldValue, timestamp_us) == pynvml::nvmlFieldValue_t::timestamp);
  CHECK(offsetof(NvmlFieldValue, latency_us) == pynvml::nvmlFieldValue_t::latencyUsec);
  CHECK(offsetof(NvmlFieldValue, type) == pynvml::nvmlFieldValue_t::valueType);
  CHECK(offsetof(NvmlFieldValue, result) == pynvml::nvmlFieldValue_t::nvmlReturn);
  CHECK(offsetof(NvmlFieldValue, value) == pynvml::nvmlFieldValue_t::value);
  CHECK(sizeof(NvmlMemory) == pynvml::nvmlMemory_t::size);
  CHECK(offsetof(NvmlMemory, total) == pynvml::nvmlMemory_t::total);
  CHECK(offsetof(NvmlMemory, free) == pynvml::nvmlMemory_t::free);
  CHECK(offsetof(NvmlMemory, used) == pynvml::nvmlMemory_t::used);
  CHECK(sizeof(NvmlUtilization) == pynvml::nvmlUtilization_t::size);
  CHECK(offsetof(NvmlUtilization, gpu) == pynvml::nvmlUtilization_t::gpu);
  CHECK(offsetof(NvmlUtilization, memory) == pynvml::nvmlUtilization_t::memory);
}

TEST_CASE("the nvml functions that Ronde calls are those that cuda's pynvml or LibTorch calls") {
  NvmlApi table;
  std::size_t count = 0;
  const std::string problem = table.load(
      [&](const char*, const char* symbol, std::string&) -> void* {
        CAPTURE(symbol);
        CHECK(pynvml::kFunctions.contains(symbol));
        return ++count, &count;
      },
      kNvmlLibrary);
  CHECK(problem.empty());
  CHECK(count == 7);
}

}  // namespace

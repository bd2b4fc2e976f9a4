// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include "fake_cuda_state.h"

namespace ronde::test::fake {

void add_queries(Symbols& symbols) {
  symbols["cuInit"] =
      at(+[](unsigned) { return call("cuInit", [](State&, Lock&) { return kSuccess; }); });
  symbols["cuDriverGetVersion"] = at(+[](int* version) {
    return call("cuDriverGetVersion",
                [&](State& s, Lock&) { return *version = s.options.version, kSuccess; });
  });
  symbols["cuGetErrorString"] =
      at(+[](Result, const char** text) -> Result { return *text = "the fake says so", kSuccess; });
  symbols["cuGetErrorName"] =
      at(+[](Result, const char** text) -> Result { return *text = "CUDA_ERROR_FAKE", kSuccess; });
  symbols["cuDeviceGetCount"] = at(+[](int* count) {
    return call("cuDeviceGetCount",
                [&](State& s, Lock&) { return *count = s.options.devices, kSuccess; });
  });
  symbols["cuDeviceGet"] = at(+[](DeviceHandle* device, int index) {
    return call("cuDeviceGet", [&](State& s, Lock&) {
      if (index < 0 || index >= s.options.devices) return kInvalidDevice;
      return *device = index, kSuccess;
    });
  });
  symbols["cuDeviceGetName"] = at(
      +[](char* name, int, DeviceHandle) -> Result { return std::strcpy(name, "Fake"), kSuccess; });
  symbols["cuDeviceTotalMem_v2"] = at(+[](std::size_t* bytes, DeviceHandle) -> Result {
    return *bytes = std::size_t{1} << 30, kSuccess;
  });
  symbols["cuDeviceGetUuid_v2"] = at(+[](Uuid* uuid, DeviceHandle device) -> Result {
    uuid->bytes.fill(static_cast<unsigned char>(device + 1));
    return kSuccess;
  });
  symbols["cuDeviceGetPCIBusId"] = at(+[](char* id, int, DeviceHandle device) -> Result {
    const std::string text = "0000:0" + std::to_string(device) + ":00.0";
    return std::strcpy(id, text.c_str()), kSuccess;
  });
  symbols["cuDeviceGetAttribute"] = at(+[](int* value, int attribute, DeviceHandle) -> Result {
    *value = attribute == kAttributeComputeCapabilityMajor ? 9
             : attribute == kAttributeMultiprocessorCount  ? 132
             : attribute == kAttributeUnifiedAddressing    ? 1
                                                           : 0;
    return kSuccess;
  });
  // Of the table, but not called.
  for (const char* const symbol :
       {"cuDeviceGetByPCIBusId", "cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess"}) {
    symbols[symbol] = at(+[]() -> Result { return kNotSupported; });
  }
}

void add_contexts(Symbols& symbols) {
  symbols["cuDevicePrimaryCtxRetain"] = at(+[](ContextHandle* context, DeviceHandle device) {
    return call("cuDevicePrimaryCtxRetain", [&](State& s, Lock&) {
      ++s.retained.at(static_cast<std::size_t>(device));
      *context = reinterpret_cast<ContextHandle>(static_cast<std::uintptr_t>(device) + 1);
      return kSuccess;
    });
  });
  symbols["cuDevicePrimaryCtxRelease_v2"] = at(+[](DeviceHandle device) {
    return call("cuDevicePrimaryCtxRelease_v2", [&](State& s, Lock&) {
      return --s.retained.at(static_cast<std::size_t>(device)), kSuccess;
    });
  });
  symbols["cuCtxPushCurrent_v2"] = at(+[](ContextHandle context) {
    return call("cuCtxPushCurrent_v2",
                [&](State&, Lock&) { return contexts().push_back(context), kSuccess; });
  });
  symbols["cuCtxPopCurrent_v2"] = at(+[](ContextHandle* context) {
    return call("cuCtxPopCurrent_v2", [&](State&, Lock&) {
      if (contexts().empty()) return kInvalidContext;
      *context = contexts().back();
      return contexts().pop_back(), kSuccess;
    });
  });
  symbols["cuThreadExchangeStreamCaptureMode"] = at(+[](int* mode) -> Result {
    thread_local int own = 0;  // global
    return std::swap(own, *mode), kSuccess;
  });
  symbols["cuStreamIsCapturing"] = at(+[](StreamHandle stream, int* status) {
    return call_in_context("cuStreamIsCapturing", [&](State& s, Lock&) {
      constexpr int kActive = 1;
      if (stream == nullptr && s.default_is_unusable) return kCaptureImplicit;
      return *status = s.captured.contains(stream) ? kActive : kCaptureNone, kSuccess;
    });
  });
  symbols["cuCtxGetStreamPriorityRange"] =
      at(+[](int* least, int* greatest) -> Result { return *least = 0, *greatest = -5, kSuccess; });
}

}  // namespace ronde::test::fake

// SPDX-License-Identifier: Apache-2.0
// Uses c10 alone: no library of CUDA is linked.
#include "torch_ext/src/common/device_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

template <typename Stream>
void* native_handle(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    throw UsageError(rank_prefix() + "this LibTorch does not tell which stream a tensor on " +
                     stream.device().str() +
                     " is ready in. Use 2.11 or newer, or copy the tensor to the CPU");
  }
}

}  // namespace

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void* native_stream(const std::optional<c10::Stream>& stream) {
  return stream ? native_handle(*stream) : nullptr;
}

}  // namespace ronde::detail

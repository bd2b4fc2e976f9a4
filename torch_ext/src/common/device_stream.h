// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>

namespace ronde::detail {

/// The stream in which LibTorch queues what this thread asks of `device`; none on the CPU. In a
/// hook of autograd it is that in which backward has computed what the hook is given.
std::optional<c10::Stream> current_stream(c10::Device device);

/// What Request::stream and Work::wait_on() take; null where there is no stream. Throws UsageError
/// if this LibTorch does not tell.
void* native_stream(const std::optional<c10::Stream>& stream);

}  // namespace ronde::detail

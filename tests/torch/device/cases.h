// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace ronde_test {

/// Begins a case: what communicates is ready, or the case is skipped as there is no GPU. The cases
/// are those of two programs: of one on a GPU, and of one on a device that is the host's memory.
void use_device();

/// On which tensors are.
c10::Device device();

/// Returns a stream other than the current one.
c10::Stream side_stream();

/// Queues what takes the device long in its current stream, in which `tensor` then gets `value`.
void fill_late(const at::Tensor& tensor, double value);

/// Has the allocator give back what nobody uses.
void empty_cache();

}  // namespace ronde_test

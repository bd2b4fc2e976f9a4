// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>

namespace example {

/// What --device says: "cpu", or "cuda", which is a GPU of its own for each rank of a host. Must be
/// called after Ronde's init and before any call of ATen that asks for CUDA, such as
/// torch::manual_seed(): it loads libtorch_cuda, which LibTorch does not notice later. Throws
/// InputError where there is no GPU for Ronde, with what to do.
c10::Device choose_device(const std::string& name);

/// `tensor` of the CPU on `device`; for a GPU the copy is queued, and the caller goes on.
at::Tensor send_to(const at::Tensor& tensor, c10::Device device);

}  // namespace example

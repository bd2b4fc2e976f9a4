// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ronde::cuda {

/// The compiled backends/gpu/kernels/kernels.cu, for cuModuleLoadData; null if Ronde was built
/// without nvcc.
const void* kernel_image() noexcept;

/// The major version of the toolkit that compiled the kernels, or 0. Older drivers do not load
/// them.
int kernel_toolkit() noexcept;

constexpr const char* kNoKernels =
    "this build of Ronde has no kernels for GPUs, as nvcc was not found. Build it with the CUDA "
    "Toolkit 12 or 13";

}  // namespace ronde::cuda

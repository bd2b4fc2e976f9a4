// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ronde::cuda {

/// The compiled kernels/kernels.cu, for cuModuleLoadData; null if Ronde was built without nvcc.
const void* kernel_image() noexcept;

}  // namespace ronde::cuda

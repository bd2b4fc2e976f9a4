// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ronde::cuda {

/// The compiled kernels/kernels.cu, for cuModuleLoadData; null if Ronde was built without nvcc.
const void* kernel_image() noexcept;

/// The major version of the toolkit that compiled them; 0 if none did. Drivers of an older one do
/// not load them.
int kernel_toolkit() noexcept;

}  // namespace ronde::cuda

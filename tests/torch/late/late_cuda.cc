// SPDX-License-Identifier: Apache-2.0
// A libtorch_cuda without CUDA. As the real library does, it registers its hooks when it is opened;
// LibTorch looks for hooks once in a process. That of tests/torch/device registers them before
// main(), and so cannot come too late.
#include <ATen/detail/CUDAHooksInterface.h>

namespace {

/// One GPU, for those who only ask whether there is one.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

}  // namespace

namespace at {
using ::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

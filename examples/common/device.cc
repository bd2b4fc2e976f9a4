// SPDX-License-Identifier: Apache-2.0
#include "common/device.h"

#include <dlfcn.h>
#include <torch/cuda.h>

#include <ronde/torch.h>

#include "common/errors.h"

namespace example {

c10::Device choose_device(const std::string& name) {
  if (name == "cpu") return c10::kCPU;
  // Not linked, so that the same program runs with a LibTorch that has no CUDA.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw InputError(std::string("--device cuda: this LibTorch has no CUDA (") + dlerror() +
                     "); build with one that has, or leave --device out");
  }
  const c10::Device device = ronde::local_device();
  if (device.is_cuda()) return device;
  if (!torch::cuda::is_available()) {
    throw InputError(
        "--device cuda: LibTorch finds no GPU; see what nvidia-smi and CUDA_VISIBLE_DEVICES say, "
        "or leave --device out");
  }
  throw InputError(
      "--device cuda: Ronde has no backend for GPUs here; `ronde info` tells what it finds");
}

at::Tensor send_to(const at::Tensor& tensor, c10::Device device) {
  // From memory that is page-locked alone does a copy run beside the program.
  return device.is_cuda() ? tensor.pin_memory().to(device, /*non_blocking=*/true) : tensor;
}

}  // namespace example

// SPDX-License-Identifier: Apache-2.0
// The device of tests/torch/device/cases_test.cc where there is a GPU.
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/torch/device/cases.h"
#include "tests/torch/support.h"

namespace ronde_test {
namespace {

/// By these words ctest knows a test that could not be run (cmake/discover_cases.cmake).
[[noreturn]] void skip(const std::string& why) {
  std::printf("skipped: no GPU for Ronde: %s\n", why.c_str());
  std::fflush(stdout);
  // Always of several ranks: a launcher kills the others once one has failed.
  std::_Exit(EXIT_SUCCESS);
}

}  // namespace

void use_device() {
  // Ronde links none of LibTorch's libraries of CUDA; a program that has a GPU does.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) skip(dlerror());
  if (!torch::cuda::is_available()) skip("LibTorch finds none");
  use_ronde();
  REQUIRE(ronde::default_runtime().backend_name(ronde::DeviceKind::Cuda) != "");
}

c10::Device device() {
  return ronde::local_device();
}

c10::Stream side_stream() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device());
}

/// The kernels take longer than all that the host does meanwhile.
void fill_late(const at::Tensor& tensor, double value) {
  constexpr int kKernels = 20;
  const at::Tensor large = at::ones({4096, 4096}, device());
  for (int i = 0; i < kKernels; ++i) at::mm(large, large);
  tensor.fill_(value);
}

void empty_cache() {
  c10::getDeviceAllocator(c10::kCUDA)->emptyCache();
}

}  // namespace ronde_test

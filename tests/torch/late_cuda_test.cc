// SPDX-License-Identifier: Apache-2.0
// A program that opens libtorch_cuda, here a stand-in, before or after it asks LibTorch for CUDA.
#include <dlfcn.h>

#include <memory>
#include <string>

#include "tests/support/fakes/fake_device.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/processes/beside.h"
#include "tests/torch/support.h"

namespace ronde_test::late_cuda_test {
namespace {

/// Ronde has a backend for GPUs, whatever machine this is.
void use_ronde_with_gpus() {
  ::setenv("RONDE_GPU_BACKEND", "fake", 1);
  ronde::register_backend(
      "fake", ronde::test::fake_device_factory(std::make_shared<ronde::test::FakeDevice>(0)));
  use_ronde();
}

void open_cuda() {
  const std::string file = std::string(LATE_CUDA_FOLDER) + "/libtorch_cuda.so";
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  INFO((library == nullptr ? dlerror() : file.c_str()));
  REQUIRE(library != nullptr);
}

}  // namespace

TEST_CASE("the local device is a GPU once libtorch_cuda is open, however late", "[own][n1][n2]") {
  use_ronde_with_gpus();
  std::string said;
  {
    const ronde::test::CapturedErrors errors;
    CHECK(ronde::local_device() == c10::Device(c10::kCPU));
    said = errors.text();
  }
  // Its question must not keep LibTorch from what is opened next.
  CHECK(contains(said, "libtorch_cuda is not loaded") == (ronde::rank() == 0));
  open_cuda();
  CHECK(ronde::local_device() == c10::Device(c10::kCUDA, 0));
}

TEST_CASE("a libtorch_cuda that is opened after torch::manual_seed is refused", "[own][n1][n2]") {
  use_ronde_with_gpus();
  torch::manual_seed(1);
  open_cuda();
  REQUIRE(!torch::cuda::is_available());  // LibTorch has made up its mind
  check_refused([] { ronde::local_device(); },
                {"local_device()", "torch::manual_seed()", "link libtorch_cuda", "dlopen()"});
}

}  // namespace ronde_test::late_cuda_test

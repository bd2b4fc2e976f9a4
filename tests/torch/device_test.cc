// SPDX-License-Identifier: Apache-2.0
// LibTorch's threads and the local device, also where the program opens libtorch_cuda (here a
// stand-in) before or after it asks LibTorch for CUDA.
#include <dlfcn.h>

#include <cstdlib>

#include "ronde/cores.h"
#include "tests/support/fakes/fake_device.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/processes/beside.h"
#include "tests/torch/support.h"

namespace ronde_test::device_test {
namespace {

TEST_CASE("init finds the local device, and divides the cores between the local ranks", "[own]") {
  unsetenv("OMP_NUM_THREADS");
  unsetenv("RONDE_COMPUTE_THREADS");
  unsetenv("HOROVOD_COMPUTE_THREADS");
  CHECK_THROWS_AS(ronde::local_device(), ronde::UsageError);
  use_ronde();
  const int cores = ronde::topology().local_cores;
  CHECK(cores >= ronde::usable_cores().count());
  CHECK(at::get_num_threads() == std::max(1, cores / ronde::local_size()));
  // The CPU where no backend serves GPUs.
  if (ronde::default_runtime().backend_name(ronde::DeviceKind::Cuda).empty()) {
    CHECK(ronde::local_device() == c10::Device(c10::kCPU));
  } else {
    CHECK(ronde::local_device().index() ==
          ronde::local_rank() % static_cast<int>(torch::cuda::device_count()));
  }
}

TEST_CASE("OMP_NUM_THREADS leaves LibTorch's threads alone", "[n1][n2][own]") {
  setenv("OMP_NUM_THREADS", "7", 1);
  unsetenv("RONDE_COMPUTE_THREADS");
  at::set_num_threads(5);
  use_ronde();
  CHECK(at::get_num_threads() == 5);
}

TEST_CASE("RONDE_COMPUTE_THREADS wins over OMP_NUM_THREADS", "[n1][n2][own]") {
  setenv("OMP_NUM_THREADS", "7", 1);
  setenv("RONDE_COMPUTE_THREADS", "3", 1);
  use_ronde();
  CHECK(at::get_num_threads() == 3);
}

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

TEST_CASE("the local device is a GPU once libtorch_cuda is open, however late", "[own][n1][n2]") {
  use_ronde_with_gpus();
  std::string said;
  {
    const ronde::test::CapturedErrors errors;
    CHECK(ronde::local_device() == c10::Device(c10::kCPU));
    said = errors.text();
  }
  // local_device() must not make LibTorch cache its hooks.
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

}  // namespace
}  // namespace ronde_test::device_test

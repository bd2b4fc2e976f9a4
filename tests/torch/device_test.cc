// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "ronde/cores.h"
#include "tests/torch/support.h"

namespace ronde_test::device_test {

TEST_CASE("LibTorch's share of the cores", "[n1]") {
  using ronde::detail::compute_threads;
  CHECK(compute_threads(0, false, 16, 4) == 4);
  CHECK(compute_threads(0, false, 7, 2) == 3);
  CHECK(compute_threads(0, false, 2, 4) == 1);
  CHECK(compute_threads(0, true, 16, 4) == 0);
  CHECK(compute_threads(3, false, 16, 4) == 3);
  CHECK(compute_threads(3, true, 16, 4) == 3);
}

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

}  // namespace ronde_test::device_test

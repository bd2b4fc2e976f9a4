// SPDX-License-Identifier: Apache-2.0
// NCCL with one rank, so that one GPU will do: it connects, carries out each collective, and ends.
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "backends/gpu/kernels/kernel_image.h"
#include "backends/nccl/nccl.h"
#include "tests/gpu/hardware/gpu_driver.h"
#include "tests/support/gpu/gpu_exercise.h"
#include "tests/support/ranks/ranks.h"

using namespace ronde;
using namespace ronde::test;

TEST_CASE("gpu: nccl with one rank connects, carries out each collective, and ends") {
  const auto driver = gpu_driver();
  NcclOptions options;
  options.registration_cache = GENERATE(true, false);
  options.kernel_image = cuda::kernel_image();
  const BackendFactory factory = nccl_backend_factory(options);
  if (const std::string problem = factory.problem(); !problem.empty()) {
    skip_test("no GPU with NCCL for Ronde: " + problem);
  }
  const inproc::Group group(1);
  RuntimeOptions runtime_options = options_of(group, 0);
  runtime_options.config.gpu_backend = "nccl";
  runtime_options.device_backends["nccl"] = factory;
  Runtime runtime(std::move(runtime_options));
  ProgramGpu gpu(driver, 0);
  exercise_allreduces(runtime, gpu);
  exercise_exchanges(runtime, gpu);
  for (const char* const ways : {"direct_chunks", "packed_chunks", "chunks_in_order"}) {
    CHECK(counter_of(runtime, "nccl", ways) > 0);
  }
  runtime.shutdown();
}

// SPDX-License-Identifier: Apache-2.0
// NCCL with one rank, so that one GPU will do: it connects, carries out each collective, and ends.
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <vector>

#include "backends/cuda/kernel_image.h"
#include "backends/nccl/nccl.h"
#include "gpu_driver.h"
#include "gpu_tensor.h"
#include "tests/support/ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr std::size_t kCount = 1000;

Bytes numbers() {
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), 1.0F);
  Bytes bytes(kCount * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Of one rank the result is what went in.
void check_collective(Runtime& runtime, ProgramGpu& gpu, Collective kind) {
  const Bytes values = numbers();
  const GpuTensor input(gpu, values);
  GpuTensor output(gpu, Bytes(values.size()));
  Request request;
  request.kind = kind;
  request.name = std::string(to_string(kind));
  request.shape = {static_cast<std::int64_t>(kCount)};
  request.input = input.data();
  request.output = output.data();
  if (kind == Collective::Alltoall) request.splits = {static_cast<std::int64_t>(kCount)};
  request.device = {.kind = DeviceKind::Cuda, .index = gpu.context->index()};
  request.stream = gpu.stream.handle();
  runtime.run(std::move(request));
  INFO(to_string(kind));
  CHECK(output.read() == values);
}

void exercise(bool registers) {
  const auto driver = gpu_driver();
  NcclOptions options;
  options.registration_cache = registers;
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
  for (int round = 0; round < 3; ++round) {
    for (const Collective kind :
         {Collective::Allreduce, Collective::Broadcast, Collective::Allgather,
          Collective::Reducescatter, Collective::Alltoall}) {
      check_collective(runtime, gpu, kind);
    }
  }
  CHECK(runtime.backend_name(DeviceKind::Cuda) == "nccl");
  CHECK(counter_of(runtime, "nccl", "collectives") == 15);
  CHECK(counter_of(runtime, "nccl", "communicators") > 0);
  runtime.shutdown();
}

}  // namespace

TEST_CASE("gpu: nccl with one rank connects, carries out each collective, and ends") {
  exercise(true);
}

TEST_CASE("gpu: nccl with one rank, nothing registered, connects and ends") {
  exercise(false);
}

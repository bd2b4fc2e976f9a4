// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "backends/compose.h"
#include "ronde/runtime.h"
#include "tests/gpu/hardware/gpu_driver.h"
#include "tests/support/gpu/gpu_tensor.h"

namespace ronde::test {

/// A runtime of what this build brings.
inline RuntimeOptions options_of(Config config, BuiltIn built_in) {
  RuntimeOptions options;
  options.config = std::move(config);
  options.make_transport = std::move(built_in.make_transport);
  options.make_board = std::move(built_in.make_board);
  options.backends = std::move(built_in.backends);
  options.device_backends = std::move(built_in.device_backends);
  return options;
}

/// That of the ranks of a launcher, as the environment says and over the backend `cuda`.
inline RuntimeOptions launched_options(Config config = load_config_from_environment().config) {
  config.log_level = "warning";
  config.gpu_backend = "cuda";
  return options_of(config, compose_built_in(config));
}

/// The GPU of this rank, which others may share.
inline ProgramGpu gpu_of(const std::shared_ptr<const cuda::DriverApi>& driver,
                         const Runtime& runtime) {
  int gpus = 0;
  cuda::check(*driver, "counting GPUs", driver->device_count, &gpus);
  return {driver, runtime.topology().local_rank % gpus};
}

/// Sums a tensor of floats over all ranks, in place and in order with the program's stream.
inline Request sum_request_of(const GpuTensor& tensor, const ProgramGpu& gpu, std::size_t count) {
  Request request;
  request.shape = {static_cast<std::int64_t>(count)};
  request.input = request.output = tensor.data();
  gpu.place(request);
  return request;
}

}  // namespace ronde::test

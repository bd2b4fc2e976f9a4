// SPDX-License-Identifier: Apache-2.0
#include "nccl_ranks.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "backends/shm/shm.h"
#include "fake_kernels.h"

namespace ronde::test {

NcclRanks::NcclRanks(int size, const FakeNccl::Options& nccl_options,
                     const FakeCuda::Options& cuda_options)
    : cuda(cuda_options),
      nccl(cuda, nccl_options),
      device_of(static_cast<std::size_t>(size)),
      group(size) {
  add_ronde_kernels(cuda);
  std::iota(device_of.begin(), device_of.end(), 0);
  config.cpu_backend = "shm";
  options.driver_symbols = cuda.lookup();
  options.nccl_symbols = nccl.lookup();
  options.kernel_image = "an image";
  options.fusion_bytes = 2048;
}

RuntimeOptions NcclRanks::runtime_options(const inproc::Group& of, int rank) const {
  RuntimeOptions runtime = options_of(of, rank, config);
  runtime.backends["shm"] = shm_backend_factory();
  runtime.device_backends["nccl"] = nccl_backend_factory(options);
  return runtime;
}

void NcclRanks::run(const std::function<void(int rank, Runtime& runtime)>& body) {
  run_ranks(static_cast<int>(device_of.size()), [&](int rank) {
    Runtime runtime(runtime_options(group, rank));
    body(rank, runtime);
    runtime.shutdown();
  });
  check_clean();
}

void NcclRanks::run_to_its_death(const std::function<void(int rank, Runtime& runtime)>& body) {
  run_ranks(static_cast<int>(device_of.size()), [&](int rank) {
    Runtime runtime(runtime_options(group, rank));
    body(rank, runtime);
  });
}

void NcclRanks::check_clean() const {
  CHECK(nccl.misuses() == std::vector<std::string>{});
  CHECK(nccl.live() == FakeNccl::Live{});
  CHECK(cuda.live() == FakeCuda::Live{});
}

Request request_on(Device device, Collective kind, const std::string& name, Buffers& buffers) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.dtype = buffers.input.dtype();
  request.shape = {static_cast<std::int64_t>(buffers.input.count())};
  request.input = buffers.input.data();
  request.output = buffers.output.data();
  request.device = device;
  return request;
}

}  // namespace ronde::test

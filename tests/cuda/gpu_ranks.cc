// SPDX-License-Identifier: Apache-2.0
#include "gpu_ranks.h"

#include <cstring>
#include <utility>

#include "backends/shm/shm.h"

namespace ronde::test {
namespace {

Bytes bytes_of(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

CudaOptions cuda_options_of(const FakeMachine& machine) {
  CudaOptions options;
  options.fusion_bytes = 65536;
  options.one_shot_bytes = 4096;
  options.staged_piece_bytes = 8192;
  options.ipc_block_bytes = 1;
  options.symbols = machine.cuda.lookup();
  options.kernel_image = "an image";
  return options;
}

RuntimeOptions gpu_options_of(const inproc::Group& group, int rank, const CudaOptions& cuda,
                              const std::string& cpu_backend, const Config& config) {
  RuntimeOptions options = options_of(group, rank, config);
  options.config.cpu_backend = cpu_backend;
  options.config.fusion_bytes = cuda.fusion_bytes;
  options.backends["shm"] = shm_backend_factory();
  options.device_backends["mpi"] = cuda_backend_factory(cuda);
  return options;
}

void run_gpu_ranks(FakeMachine& machine, int size, int devices, const CudaOptions& cuda,
                   const std::function<void(Runtime& runtime, ProgramGpu& gpu)>& body,
                   const Config& config) {
  const inproc::Group group(size);
  run_ranks(size, [&](int rank) {
    ProgramGpu gpu(machine.cuda.api(), rank % devices);
    Runtime runtime(gpu_options_of(group, rank, cuda, "shm", config));
    body(runtime, gpu);
    runtime.shutdown();
  });
}

GpuSum::GpuSum(Runtime& runtime, ProgramGpu& gpu, std::size_t count)
    : runtime_(&runtime), gpu_(&gpu), count_(count), tensor_(gpu, count * sizeof(float)) {
  write(static_cast<float>(runtime.topology().rank + 1));
}

Request GpuSum::request(const std::string& name) {
  Request request;
  request.name = name;
  request.shape = {static_cast<std::int64_t>(count_)};
  request.device = {.kind = DeviceKind::Cuda, .index = gpu_->context->index()};
  request.stream = gpu_->stream.handle();
  request.input = request.output = tensor_.data();
  return request;
}

void GpuSum::write(float value) {
  tensor_.write(bytes_of(std::vector<float>(count_, value)));
}

std::vector<float> GpuSum::read() const {
  const Bytes bytes = tensor_.read();
  std::vector<float> values(count_);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void GpuSum::check_result(const Work& work, int ranks) const {
  work.wait();
  const int last = ranks > 0 ? ranks : runtime_->topology().size;
  const auto expected = static_cast<float>(last * (last + 1) / 2);
  check(read() == std::vector<float>(count_, expected),
        "a sum of " + std::to_string(count_) + " elements on rank " +
            std::to_string(runtime_->topology().rank));
}

void sum_on_gpu(Runtime& runtime, ProgramGpu& gpu, std::size_t count) {
  GpuSum sum(runtime, gpu, count);
  sum.check_result(sum.start());
}

}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/gpu_ranks.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <filesystem>
#include <thread>

#include "backends/shm/shm.h"
#include "core/src/base/steps.h"
#include "tests/support/fakes/stream_fiber.h"
#include "tests/support/fakes/wrapped_backend.h"
#include "tests/support/gpu/machine.h"

namespace ronde::test {
namespace {

/// The CPU's backend, by whose allgathers ranks tell each other that their GPUs have come so far.
/// Ranks that are threads have its memory mapped at different addresses, so that ThreadSanitizer
/// does not see by itself what is ordered so.
class OrderingBackend final : public WrappedBackend {
 public:
  OrderingBackend(std::unique_ptr<Backend> inner, std::size_t set)
      : WrappedBackend("shm", std::move(inner)), token_(&tokens[set % tokens.size()]) {}

  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    fake::release(token_);
    return std::make_unique<Ordered>(WrappedBackend::allgather(call), token_);
  }

 private:
  class Ordered final : public SteppedOperation {
   public:
    Ordered(std::unique_ptr<Operation> inner, const void* token) {
      begin(run(std::move(inner), token));
    }
    static Steps run(std::unique_ptr<Operation> inner, const void* token) {
      co_await until_finished(*inner);
      fake::acquire(token);
    }
  };

  static inline std::array<char, 64> tokens;  ///< of process sets
  const void* const token_;

  std::unique_ptr<Operation> wrap(Start start, void* /*output*/) override { return start(); }
};

BackendFactory cpu_backend_factory() {
  BackendFactory factory = shm_backend_factory();
  factory.create = [create = factory.create](BackendContext& context) {
    return std::make_unique<OrderingBackend>(create(context),
                                             static_cast<std::size_t>(context.set));
  };
  return factory;
}

/// With those that have been joined a moment ago.
std::set<std::string> threads() {
  std::set<std::string> numbers;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    numbers.insert(thread.path().filename());
  }
  return numbers;
}

}  // namespace

CudaOptions cuda_options_of(const FakeCuda& cuda, const Way& way) {
  CudaOptions options;
  options.ipc = way.ipc;
  options.ipc_direct_bytes = way.direct_bytes;
  options.registration_cache = way.cache;
  options.fusion_bytes = 65536;
  options.one_shot_bytes = 4096;
  options.staged_piece_bytes = 8192;
  options.ipc_block_bytes = 1;
  options.symbols = cuda.lookup();
  options.kernel_image = "an image";
  return options;
}

GpuRanks::GpuRanks(const std::vector<int>& host_of, const FakeCuda::Options& gpus)
    : cuda(gpus), group(host_of), host_of_(host_of) {
  for (int rank = 0; rank < size(); ++rank) device_of.push_back(rank % gpus.devices);
}

ProgramGpu GpuRanks::gpu(int rank) const {
  return {cuda.api(), device_of[static_cast<std::size_t>(rank)]};
}

void GpuRanks::run(const Body& body) {
  run_to_its_death([&](Runtime& runtime, ProgramGpu& own) {
    body(runtime, own);
    runtime.shutdown();
  });
  check_clean();
}

void GpuRanks::run_to_its_death(const Body& body) {
  std::deque<ProgramGpu> gpus;
  for (int rank = 0; rank < size(); ++rank) gpus.push_back(gpu(rank));
  run_ranks(size(), [&](int rank) {
    Runtime runtime(runtime_options(rank));
    body(runtime, gpus[static_cast<std::size_t>(rank)]);
  });
  begin_job();
}

void GpuRanks::check_clean() const {
  CHECK(cuda.live() == FakeCuda::Live{});
}

RuntimeOptions CudaRanks::runtime_options(int rank) {
  RuntimeOptions runtime = options_of(group, rank);
  runtime.config.log_level = "warning";
  runtime.config.cpu_backend = cpu_backend;
  runtime.config.fusion_bytes = options.fusion_bytes;
  runtime.backends["shm"] = cpu_backend_factory();
  runtime.device_backends["cuda"] = cuda_backend_factory(options);
  return runtime;
}

NcclRanks::NcclRanks(int size, const FakeNccl::Options& nccl_options, const FakeCuda::Options& gpus)
    : GpuRanks(std::vector<int>(static_cast<std::size_t>(size)), gpus),
      nccl(cuda, nccl_options),
      threads_before_(threads()) {
  config.cpu_backend = "shm";
  config.fusion_bytes = 16384;
  options.driver_symbols = cuda.lookup();
  options.nccl_symbols = nccl.lookup();
  options.kernel_image = "an image";
  options.fusion_bytes = 2048;
}

RuntimeOptions NcclRanks::runtime_options(int rank) {
  RuntimeOptions runtime = options_of(group, rank, config);
  runtime.backends["shm"] = shm_backend_factory();
  BackendFactory factory = nccl_backend_factory(options);
  factory.create = [this, make = factory.create](BackendContext& context) {
    context.warn = [this, speaks = context.topology->rank == 0](const std::string& text) {
      if (speaks) warnings.push_back(text);
    };
    return make(context);
  };
  runtime.device_backends["nccl"] = factory;
  return runtime;
}

ProgramGpu NcclRanks::gpu(int rank) const {
  ProgramGpu own = GpuRanks::gpu(rank);
  own.is_exact = options.exact;
  return own;
}

void NcclRanks::fail_to_start(const std::function<void(const std::string& text)>& check_text) {
  run_ranks(size(), [&](int rank) {
    check_text(text_of<Error>([&] { Runtime runtime(runtime_options(rank)); }));
  });
  begin_job();
}

void NcclRanks::wait_for_threads() const {
  const std::set<std::string>& before = threads_before_;
  while (!std::ranges::includes(before, threads())) std::this_thread::yield();
  // By the locks of the fakes what they did comes before what follows.
  static_cast<void>(nccl.live());
  static_cast<void>(cuda.live());
}

void NcclRanks::end_connecting() {
  nccl.end_connecting();
  wait_for_threads();
  check_clean();
}

void NcclRanks::check_clean() const {
  CHECK(nccl.misuses() == std::vector<std::string>{});
  CHECK(nccl.live() == FakeNccl::Live{});
  GpuRanks::check_clean();
}

void NcclRanks::check_recovery() {
  run([](Runtime& runtime, ProgramGpu& own) { sum_on_gpu(runtime, own, 3001); });
}

GpuSum::GpuSum(Runtime& runtime, ProgramGpu& gpu, std::size_t count)
    : runtime_(&runtime), gpu_(&gpu), count_(count), tensor_(gpu, count * sizeof(float)) {
  write(static_cast<float>(runtime.topology().rank + 1));
}

Request GpuSum::request(const std::string& name, ProcessSet set) {
  Request request = sum_request_of(tensor_, *gpu_, count_);
  request.name = name;
  request.set = set;
  return request;
}

Request GpuSum::message(int peer, bool is_sent) {
  Request request = this->request();
  request.kind = is_sent ? Collective::Send : Collective::Recv;
  request.peer = peer;
  if (is_sent) request.output = nullptr;
  if (!is_sent) request.input = nullptr;
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

void GpuSum::check_values(float expected, const std::string& what) const {
  check(read() == std::vector<float>(count_, expected),
        what + ", of " + std::to_string(count_) + " elements on rank " +
            std::to_string(runtime_->topology().rank));
}

void GpuSum::check_result(const Work& work, ProcessSet set) const {
  work.wait();
  float expected = 0;
  for (const int rank : runtime_->ranks_of(set)) expected += static_cast<float>(rank + 1);
  check_values(expected, "a sum");
}

void sum_on_gpu(Runtime& runtime, ProgramGpu& gpu, std::size_t count, ProcessSet set) {
  GpuSum sum(runtime, gpu, count);
  sum.check_result(runtime.submit(sum.request({}, set)), set);
}

Work start_owned(Runtime& runtime, ProgramGpu& gpu, std::size_t count, std::weak_ptr<void>& memory,
                 ProcessSet set) {
  auto sum = std::make_shared<GpuSum>(runtime, gpu, count);
  memory = sum;
  Request request = sum->request({}, set);
  request.keep_alive = std::move(sum);
  return runtime.submit(std::move(request));
}

void check_counters(const Runtime& runtime, const Counters& expected, const std::string& part) {
  for (const auto& [name, value] : expected) {
    const std::uint64_t seen = counter_of(runtime, part, name);
    check(seen == value, name + " is " + std::to_string(value) + ", not " + std::to_string(seen));
  }
}

std::shared_ptr<const cuda::DriverApi> machine_driver() {
  struct Driver {
    FakeCuda cuda;
    std::shared_ptr<const cuda::DriverApi> api = cuda.api();
  };
  const auto driver = std::make_shared<Driver>();
  return {driver, driver->api.get()};
}

const void* machine_kernels() {
  return "an image";
}

}  // namespace ronde::test

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
  BackendFactory factory = nccl_backend_factory(options);
  factory.create = [this, make = factory.create](BackendContext& context) {
    context.warn = [this, speaks = context.topology->rank == 0](const std::string& text) {
      const std::lock_guard lock(mutex_);
      if (speaks) warnings_.push_back(text);
    };
    return make(context);
  };
  runtime.device_backends["nccl"] = factory;
  return runtime;
}

std::vector<std::string> NcclRanks::warnings() const {
  const std::lock_guard lock(mutex_);
  return warnings_;
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

void ProgramStream::hold_before_copy(void* to, const void* from, std::size_t bytes) {
  machine_.cuda.hold(handle());
  stream_.copy(reinterpret_cast<cuda::DevicePointer>(to),
               reinterpret_cast<cuda::DevicePointer>(from), bytes, "copying");
}

namespace {

class StandIn final : public Backend {
 public:
  explicit StandIn(Backend& host) : host_(host) {}

  std::string_view name() const noexcept override { return "stand-in"; }
  Capabilities capabilities() const override {
    Capabilities capabilities = host_.capabilities();
    capabilities.device = DeviceKind::Cuda;
    return capabilities;
  }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return host_.allreduce(call);
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return host_.broadcast(call);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return host_.allgather(call);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return host_.alltoall(call);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return host_.reducescatter(call);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override { return host_.send(call); }
  std::unique_ptr<Operation> recv(const RecvCall& call) override { return host_.recv(call); }
  void abort() noexcept override {}
  void close() override {}
  StatsGroup stats() const override { return {"stand-in", {{"here", 1}}}; }

 private:
  Backend& host_;
};

}  // namespace

std::unique_ptr<Backend> make_stand_in(BackendContext& context) {
  return std::make_unique<StandIn>(*context.host);
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

// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/nccl.h"

#include <string>

#include "backends/gpu/gpu_backends.h"
#include "backends/nccl/operation.h"
#include "core/src/base/steps.h"

namespace ronde {
namespace nccl {
namespace {

/// Connects the ranks, and then has the thread of a channel queue the work, or the fallback run it.
class ConnectedOperation final : public SteppedOperation {
 public:
  /// `method`: that of the fallback. `peer`: the other rank of a message.
  template <typename Call, typename Method>
  ConnectedOperation(Communicators& communicators, const Call& call, Method method,
                     int peer = Communicators::kAllRanks) {
    begin(run(communicators, call, method, peer));
  }

 private:
  template <typename Call, typename Method>
  Steps run(Communicators& communicators, Call call, Method method, int peer) {
    co_await until([&] { return communicators.connect(peer, call.place.device.index); });
    if (Backend* const fallback = communicators.fallback(peer)) {
      const std::unique_ptr<Operation> operation = (fallback->*method)(call);
      co_await until_finished(*operation);
      set_event(operation->event());
      co_return;
    }
    const std::shared_ptr<Work> work = make_work(communicators, call);
    const auto task =
        work->channel().thread->submit(IssuingThread::Kind::Work, [work] { work->run(); });
    co_await until([&] { return task->poll(); });
    set_event(work->event());
  }
};

/// Moves and reduces data on GPUs by NCCL, or by the fallback if ranks share a GPU.
///
/// Thread-safety: as Backend.
class NcclBackend final : public Backend {
 public:
  NcclBackend(const Libraries& libraries, const NcclOptions& options, const BackendContext& context)
      : communicators_(libraries, options, context) {}

  std::string_view name() const noexcept override { return "nccl"; }
  Capabilities capabilities() const override { return cuda::gpu_capabilities(); }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return collective(call, &Backend::allreduce);
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return collective(call, &Backend::broadcast);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return collective(call, &Backend::allgather);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return collective(call, &Backend::alltoall);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return collective(call, &Backend::reducescatter);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return message(call, &Backend::send);
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return message(call, &Backend::recv);
  }

  std::shared_ptr<DeviceStreams> device_streams() const override {
    return communicators_.device_streams();
  }
  void abort() noexcept override { communicators_.abort(); }
  void release_peer_memory() override { communicators_.release_peer_memory(); }
  void close() override { communicators_.close(); }
  StatsGroup stats() const override { return communicators_.stats(); }

 private:
  template <typename Call, typename Method>
  std::unique_ptr<Operation> collective(const Call& call, Method method) {
    ++communicators_.counts().collectives;
    return std::make_unique<ConnectedOperation>(communicators_, call, method);
  }
  template <typename Call, typename Method>
  std::unique_ptr<Operation> message(const Call& call, Method method) {
    ++communicators_.counts().messages;
    return std::make_unique<ConnectedOperation>(communicators_, call, method, call.peer);
  }

  Communicators communicators_;
};

/// Throws Error if this process cannot use them.
Libraries load_libraries(const NcclOptions& options) {
  const cuda::LoadedDriver driver = cuda::load_driver(options.driver_symbols);
  const std::string no_gpu = cuda::why_no_gpu(driver, options.kernel_image);
  if (!no_gpu.empty()) throw Error(no_gpu);
  const LoadedNccl nccl = load_nccl(options.nccl_symbols);
  if (!nccl.api) throw Error(nccl.problem);
  return {driver.api, nccl.api, nccl.version};
}

}  // namespace
}  // namespace nccl

BackendFactory nccl_backend_factory(const NcclOptions& options) {
  BackendFactory factory;
  factory.device = DeviceKind::Cuda;
  factory.priority = 20;
  factory.serves_sets = true;
  factory.problem = [options]() -> std::string {
    try {
      nccl::load_libraries(options);
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  factory.create = [options](BackendContext& context) -> std::unique_ptr<Backend> {
    return std::make_unique<nccl::NcclBackend>(nccl::load_libraries(options), options, context);
  };
  return factory;
}

}  // namespace ronde

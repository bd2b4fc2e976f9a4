// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/nccl.h"

#include <mutex>
#include <optional>
#include <string>

#include "backends/cuda/gpu_backends.h"
#include "backends/device/steps.h"
#include "backends/nccl/movements.h"
#include "backends/nccl/reductions.h"

namespace ronde {
namespace nccl {
namespace {

/// Begins once the ranks are connected. By NCCL it is queued by the thread of its channel.
template <typename Own>
class LinkedOperation final : public device::SteppedOperation {
 public:
  /// `method`: the fallback's. `peer`: of a message.
  template <typename Call, typename Method>
  LinkedOperation(Links& links, const Call& call, Method method, std::optional<int> peer) {
    begin(run(links, call, method, peer));
  }

 private:
  template <typename Call, typename Method>
  device::Steps run(Links& links, Call call, Method method, std::optional<int> peer) {
    const int device = call.place.device.index;
    co_await device::until(
        [&] { return peer ? links.connect_to(*peer, device) : links.connect(device); });
    Backend* const fallback = peer ? links.fallback_to(*peer) : links.fallback();
    if (fallback != nullptr) {
      const std::unique_ptr<Operation> operation = (fallback->*method)(call);
      co_await device::until_finished(*operation);
      set_event(operation->event());
      co_return;
    }
    const auto work = std::make_shared<Own>(links, call);
    const auto task =
        work->channel().thread->submit(IssuingThread::Kind::Work, [work] { work->run(); });
    co_await device::until([&] { return task->poll(); });
    set_event(work->event());
  }
};

/// Moves and reduces what is on GPUs by NCCL, or by the fallback where ranks share a GPU.
///
/// Thread-safety: as Backend.
class NcclBackend final : public Backend {
 public:
  NcclBackend(const Libraries& libraries, const NcclOptions& options, const BackendContext& context)
      : links_(libraries, options, context) {}

  std::string_view name() const noexcept override { return "nccl"; }
  Capabilities capabilities() const override { return cuda::gpu_capabilities(); }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return collective<Allreduce>(call, &Backend::allreduce);
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return collective<Broadcast>(call, &Backend::broadcast);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return collective<Allgather>(call, &Backend::allgather);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return collective<Alltoall>(call, &Backend::alltoall);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return collective<Reducescatter>(call, &Backend::reducescatter);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return message(call, &Backend::send);
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return message(call, &Backend::recv);
  }

  std::shared_ptr<DeviceStreams> device_streams() const override { return links_.device_streams(); }
  void abort() noexcept override { links_.abort(); }
  void let_go() override { links_.let_go(); }
  void close() override { links_.close(); }
  StatsGroup stats() const override { return links_.stats(); }

 private:
  template <typename Own, typename Call, typename Method>
  std::unique_ptr<Operation> collective(const Call& call, Method method) {
    ++links_.counts().collectives;
    return std::make_unique<LinkedOperation<Own>>(links_, call, method, std::nullopt);
  }
  template <typename Call, typename Method>
  std::unique_ptr<Operation> message(const Call& call, Method method) {
    ++links_.counts().messages;
    return std::make_unique<LinkedOperation<Message>>(links_, call, method, call.peer);
  }

  Links links_;
};

/// What this process has of the vendors' libraries; looked for once, by whoever asks first.
class Found {
 public:
  explicit Found(const NcclOptions& options) : options_(options) {}

  /// Why there is none; else empty.
  const std::string& problem() {
    std::call_once(once_, [this] {
      try {
        problem_ = load();
      } catch (const std::exception& error) {
        problem_ = error.what();
      }
    });
    return problem_;
  }
  /// Where there is no problem().
  const Libraries& libraries() const noexcept { return libraries_; }

 private:
  std::string load() {
    const cuda::LoadedDriver driver = cuda::load_driver(options_.driver_symbols);
    const std::string no_gpu = cuda::why_no_gpu(driver, options_.kernel_image);
    if (!no_gpu.empty()) return no_gpu;
    const LoadedNccl nccl = load_nccl(options_.nccl_symbols);
    if (!nccl.api) return nccl.problem;
    libraries_ = {driver.api, nccl.api, nccl.version};
    return {};
  }

  const NcclOptions options_;
  std::once_flag once_;
  std::string problem_;
  Libraries libraries_;
};

}  // namespace
}  // namespace nccl

BackendFactory nccl_backend_factory(const NcclOptions& options) {
  const auto found = std::make_shared<nccl::Found>(options);
  BackendFactory factory;
  factory.device = DeviceKind::Cuda;
  factory.priority = 20;
  factory.serves_sets = true;
  factory.problem = [found] { return found->problem(); };
  factory.create = [found, options](BackendContext& context) -> std::unique_ptr<Backend> {
    if (!found->problem().empty()) throw Error(found->problem());
    return std::make_unique<nccl::NcclBackend>(found->libraries(), options, context);
  };
  return factory;
}

}  // namespace ronde

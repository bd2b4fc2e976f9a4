// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/nccl.h"

#include <mutex>
#include <string>
#include <utility>

#include "backends/cuda/gpu_backends.h"
#include "backends/nccl/movements.h"
#include "backends/nccl/reductions.h"

namespace ronde {
namespace nccl {
namespace {

/// An operation that starts once the ranks are connected.
class Connecting final : public Operation {
 public:
  using Connect = std::function<bool()>;
  using Start = std::function<std::unique_ptr<Operation>()>;
  Connecting(Connect connect, Start start)
      : connect_(std::move(connect)), start_(std::move(start)) {}

  bool poll() override {
    if (!operation_) {
      if (!connect_()) return false;
      operation_ = start_();
    }
    return operation_->poll();
  }
  std::uint64_t progress() const override { return operation_ ? 1 + operation_->progress() : 0; }
  std::shared_ptr<const DeviceEvent> event() const override {
    return operation_ ? operation_->event() : nullptr;
  }

 private:
  const Connect connect_;
  const Start start_;
  std::unique_ptr<Operation> operation_;
};

/// Queued by the thread of its channel.
class IssuedOperation final : public Operation {
 public:
  explicit IssuedOperation(const std::shared_ptr<Work>& work)
      : work_(work),
        task_(work->channel().thread->submit(IssuingThread::Kind::Work, [work] { work->run(); })) {}

  bool poll() override { return task_->poll(); }
  std::shared_ptr<const DeviceEvent> event() const override { return work_->event(); }

 private:
  const std::shared_ptr<Work> work_;
  const std::shared_ptr<Task> task_;
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
  /// The fallback's.
  template <typename Call>
  using Method = std::unique_ptr<Operation> (Backend::*)(const Call&);

  template <typename Own, typename Call>
  std::unique_ptr<Operation> collective(const Call& call, Method<Call> method) {
    ++links_.counts().collectives;
    return std::make_unique<Connecting>(
        [this, device = call.place.device.index] { return links_.connect(device); },
        [this, call, method] { return start<Own>(links_.fallback(), call, method); });
  }

  template <typename Call>
  std::unique_ptr<Operation> message(const Call& call, Method<Call> method) {
    ++links_.counts().messages;
    return std::make_unique<Connecting>(
        [this, peer = call.peer, device = call.place.device.index] {
          return links_.connect_to(peer, device);
        },
        [this, call, method] {
          return start<Message>(links_.fallback_to(call.peer), call, method);
        });
  }

  template <typename Own, typename Call>
  std::unique_ptr<Operation> start(Backend* fallback, const Call& call, Method<Call> method) {
    if (fallback != nullptr) return (fallback->*method)(call);
    return std::make_unique<IssuedOperation>(std::make_shared<Own>(links_, call));
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

// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/nccl_backend.h"

#include <utility>

#include "backends/nccl/movements.h"
#include "backends/nccl/reductions.h"

namespace ronde::nccl {
namespace {

/// An operation that starts once the ranks are connected.
template <typename Connect, typename Start>
class Connecting final : public Operation {
 public:
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

template <typename Connect, typename Start>
std::unique_ptr<Operation> connecting(Connect connect, Start start) {
  return std::make_unique<Connecting<Connect, Start>>(std::move(connect), std::move(start));
}

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

template <typename Own, typename Call>
std::unique_ptr<Operation> issued(Links& links, const Call& call) {
  return std::make_unique<IssuedOperation>(std::make_shared<Own>(links, call));
}

/// One of all ranks: by NCCL, as `make` makes it, or by the fallback's `method`.
template <typename Call>
std::unique_ptr<Operation> collective(Links& links, const Call& call,
                                      std::unique_ptr<Operation> (Backend::*method)(const Call&),
                                      std::unique_ptr<Operation> (*make)(Links&, const Call&)) {
  ++links.counts().collectives;
  const auto connect = [&links, device = call.place.device.index] { return links.connect(device); };
  return connecting(connect, [&links, call, method, make]() -> std::unique_ptr<Operation> {
    if (Backend* const other = links.fallback()) return (other->*method)(call);
    return make(links, call);
  });
}

template <typename Call>
std::unique_ptr<Operation> message(Links& links, const Call& call,
                                   std::unique_ptr<Operation> (Backend::*method)(const Call&)) {
  ++links.counts().messages;
  const auto connect = [&links, peer = call.peer, device = call.place.device.index] {
    return links.connect_to(peer, device);
  };
  return connecting(connect, [&links, call, method]() -> std::unique_ptr<Operation> {
    if (Backend* const other = links.fallback_to(call.peer)) return (other->*method)(call);
    return issued<Message>(links, call);
  });
}

}  // namespace

std::unique_ptr<Operation> NcclBackend::allreduce(const AllreduceCall& call) {
  return collective(links_, call, &Backend::allreduce, issued<Allreduce, AllreduceCall>);
}

std::unique_ptr<Operation> NcclBackend::broadcast(const BroadcastCall& call) {
  return collective(links_, call, &Backend::broadcast, issued<Broadcast, BroadcastCall>);
}

std::unique_ptr<Operation> NcclBackend::allgather(const AllgatherCall& call) {
  return collective(links_, call, &Backend::allgather, issued<Allgather, AllgatherCall>);
}

std::unique_ptr<Operation> NcclBackend::alltoall(const AlltoallCall& call) {
  return collective(links_, call, &Backend::alltoall, issued<Alltoall, AlltoallCall>);
}

std::unique_ptr<Operation> NcclBackend::reducescatter(const ReducescatterCall& call) {
  return collective(links_, call, &Backend::reducescatter,
                    issued<Reducescatter, ReducescatterCall>);
}

std::unique_ptr<Operation> NcclBackend::send(const SendCall& call) {
  return message(links_, call, &Backend::send);
}

std::unique_ptr<Operation> NcclBackend::recv(const RecvCall& call) {
  return message(links_, call, &Backend::recv);
}

}  // namespace ronde::nccl

// SPDX-License-Identifier: Apache-2.0
#include "hosts_backend.h"

#include <utility>

#include "backends/hierarchical/hierarchical_allreduce.h"

namespace ronde::test {
namespace {

using hierarchical::HierarchicalAllreduce;
using hierarchical::Hierarchy;

constexpr std::size_t kSlots = 4;
constexpr std::size_t kSlotBytes = 4096;

class HostsBackend final : public Backend {
 public:
  HostsBackend(std::shared_ptr<Hierarchy> hierarchy, std::unique_ptr<Backend> others)
      : hierarchy_(std::move(hierarchy)), others_(std::move(others)) {}

  std::string_view name() const noexcept override { return "hosts"; }
  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.dtypes.set();
    capabilities.set_wire_dtypes();
    capabilities.device = DeviceKind::Cpu;
    capabilities.wants_packed = false;
    capabilities.widen_halves = false;
    capabilities.rings_peers = false;
    return capabilities;
  }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return std::make_unique<HierarchicalAllreduce>(hierarchy_, call);
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return others_->broadcast(call);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return others_->allgather(call);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return others_->alltoall(call);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return others_->reducescatter(call);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override { return others_->send(call); }
  std::unique_ptr<Operation> recv(const RecvCall& call) override { return others_->recv(call); }
  void abort() noexcept override { others_->abort(); }
  void close() override { others_->close(); }
  StatsGroup stats() const override { return others_->stats(); }

 private:
  const std::shared_ptr<Hierarchy> hierarchy_;
  const std::unique_ptr<Backend> others_;
};

}  // namespace

HostsBackends::HostsBackends(std::vector<int> host_of)
    : host_of_(std::move(host_of)), group_(host_of_), memory_(host_of_, kSlots, kSlotBytes) {}

BackendFactory HostsBackends::factory() {
  BackendFactory factory;
  factory.device = DeviceKind::Cpu;
  factory.create = [this](BackendContext& context) -> std::unique_ptr<Backend> {
    return std::make_unique<HostsBackend>(memory_.hierarchy(*context.topology),
                                          context.pack(group_.backend_factory().create(context)));
  };
  return factory;
}

}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/hosts_backend.h"

#include <utility>

#include "backends/hierarchical/hierarchical_allreduce.h"
#include "tests/support/fakes/wrapped_backend.h"

namespace ronde::test {
namespace {

using hierarchical::HierarchicalAllreduce;
using hierarchical::Hierarchy;

constexpr std::size_t kSlots = 4;
constexpr std::size_t kSlotBytes = 4096;

class HostsBackend final : public WrappedBackend {
 public:
  HostsBackend(std::shared_ptr<Hierarchy> hierarchy, std::unique_ptr<Backend> others)
      : WrappedBackend("hosts", std::move(others)), hierarchy_(std::move(hierarchy)) {}

  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.dtypes.set();
    capabilities.set_wire_dtypes();
    capabilities.device = DeviceKind::Cpu;
    capabilities.wants_packed = false;
    capabilities.widen_halves = false;
    return capabilities;
  }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return std::make_unique<HierarchicalAllreduce>(hierarchy_, call);
  }

 private:
  std::unique_ptr<Operation> wrap(Start start, void*) override { return start(); }

  const std::shared_ptr<Hierarchy> hierarchy_;
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

// SPDX-License-Identifier: Apache-2.0
// The simulated data plane sends what the real backends do.
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/src/sim/simulated_backend.h"
#include "ronde/plugin/choice.h"
#include "ronde/plugin/fabric_backend.h"
#include "tests/shm/group.h"
#include "tests/support/fakes/memory_hosts.h"

namespace ronde::test {
namespace {

/// By rank: the number of messages that it has sent, and their bytes.
using Sent = std::vector<std::vector<std::uint64_t>>;

struct Call {
  std::vector<int> host_of;
  std::string algorithm;
  DataType dtype = DataType::F32;
  std::optional<DataType> wire = {};
  std::size_t count = 0;

  AllreduceCall call(const Segment& all) const {
    return {.segments = {&all, 1}, .dtype = dtype, .wire_dtype = wire};
  }
  Config config() const {
    Config config;
    config.allreduce = algorithm;
    return config;
  }
};

Sent really_sent(const Call& call) {
  Sent sent(call.host_of.size(), {0, 0});
  const Shards shards = shards_of(make_topology(0, call.host_of));
  MemoryHosts memory(call.host_of, kRoundSlots, round_bytes(shards));
  memory.algorithms = algorithm_table(call.config());
  run_contexts(call.host_of, [&](int rank, const BackendContext& of_thread) {
    BackendContext context = of_thread;
    context.ranks.resize(call.host_of.size());
    std::iota(context.ranks.begin(), context.ranks.end(), 0);
    std::vector<std::byte> data(call.count * size_of(call.dtype));
    const Segment all = {data.data(), data.data(), call.count};
    const std::shared_ptr<Fabric> fabric = memory.network->fabric(rank);
    std::unique_ptr<Backend> flat;
    std::unique_ptr<Operation> operation;
    if (shards.hosts == call.host_of.size()) {
      const auto shared = std::make_shared<SharedFabric>(
          [&](BackendContext&) { return memory.network->fabric(rank); });
      flat = create_backend(fabric_backend_factory(shared, {.algorithms = memory.algorithms}),
                            context, call.config().fusion_bytes);
      operation = flat->allreduce(call.call(all));
    } else {
      Shards own = shards_of(*context.topology, kLeastMessage);
      std::shared_ptr<const FabricChannel> owners;
      if (own.own) {
        owners = std::make_shared<const FabricChannel>(
            FabricChannel{fabric, own.owners, own.own_host, 1});
      }
      operation = std::make_unique<hierarchical::HierarchicalAllreduce>(
          std::make_shared<hierarchical::Hierarchy>(memory.buffer(*context.topology), own, owners,
                                                    memory.algorithms, false),
          call.call(all));
    }
    context.exchange({});
    finish(*operation);
    for (const auto& [name, value] : flat ? flat->stats().counters : fabric->stats().counters) {
      if (name.ends_with("sent_bytes")) sent[static_cast<std::size_t>(rank)][1] = value;
      if (name.ends_with("messages")) sent[static_cast<std::size_t>(rank)][0] = value;
    }
    context.exchange({});
  });
  return sent;
}

Sent sent_in_simulation(const Call& call) {
  Sent sent(call.host_of.size(), {0, 0});
  SimulationOptions options;
  options.config = call.config();
  options.host_of = call.host_of;
  options.on_message = [&](const SimulatedMessage& message) {
    ++sent[static_cast<std::size_t>(message.from)][0];
    sent[static_cast<std::size_t>(message.from)][1] += message.bytes;
  };
  EventQueue events;
  SimulatedNetwork network(events, options);
  const BackendFactory factory = simulated_backend_factory(network, events, options, [](int) {});
  std::deque<Topology> topologies;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Operation>> operations;
  const Segment all = {nullptr, nullptr, call.count};
  BackendContext context;
  for (int rank = 0; rank < std::ssize(call.host_of); ++rank) {
    context.topology = &topologies.emplace_back(make_topology(rank, call.host_of));
    backends.push_back(factory.create(context));
    operations.push_back(backends.back()->allreduce(call.call(all)));
  }
  while (!events.empty()) events.run_next();
  for (const auto& operation : operations) CHECK(operation->poll());
  return sent;
}

TEST_CASE("simulated ranks send the messages of real ones") {
  Call call;
  call.host_of = GENERATE(
      values<std::vector<int>>({{0, 1, 2}, {0, 1, 2, 3}, {0, 0, 1}, {0, 0, 0, 1, 1, 1, 2, 2, 2}}));
  call.algorithm = GENERATE("auto", "ring", "recursive_doubling", "halving_doubling", "pairwise");
  std::tie(call.dtype, call.wire, call.count) =
      GENERATE(table<DataType, std::optional<DataType>, std::size_t>(
          {{DataType::F32, {}, 1},
           {DataType::F32, {}, 700'000},
           {DataType::F16, {}, 5'000},
           {DataType::F32, DataType::BF16, 5'000}}));
  CAPTURE(call.host_of, call.algorithm, to_string(call.dtype), call.count, call.wire.has_value());
  CHECK(sent_in_simulation(call) == really_sent(call));
}

}  // namespace
}  // namespace ronde::test

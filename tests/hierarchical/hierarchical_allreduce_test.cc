// SPDX-License-Identifier: Apache-2.0
// Allreduces of every type and op over hosts of different sizes, compared with numbers reduced in
// double precision or 64-bit integers; and equal bits on every rank.
#include "backends/hierarchical/hierarchical_allreduce.h"

#include <set>

#include "tests/shm/calls.h"
#include "tests/shm/group.h"
#include "tests/support/fakes/memory_hosts.h"
#include "tests/support/harness/case_table.h"

namespace ronde::test {
namespace {

using hierarchical::HierarchicalAllreduce;
using hierarchical::Hierarchy;
using Hosts = std::vector<int>;  // by rank

/// The options of reductions between hosts.
struct Setting {
  std::optional<Algorithm> algorithm = {};
  bool exact = false;

  void apply(MemoryHosts& memory) const {
    if (algorithm) memory.algorithms.force(Collective::Allreduce, *algorithm);
    memory.exact = exact;
  }
};

void run_hosts(const Hosts& hosts, std::size_t slots, std::size_t slot_bytes,
               const std::function<void(const Topology&, std::shared_ptr<Hierarchy>)>& body,
               const Setting& setting = {}) {
  MemoryHosts memory(hosts, slots, slot_bytes);
  setting.apply(memory);
  run_contexts(hosts, [&](int, const BackendContext& context) {
    const auto hierarchy = memory.hierarchy(*context.topology);
    context.exchange({});
    body(*context.topology, hierarchy);
    // Peers may still copy the last messages out of this rank's memory.
    context.exchange({});
  });
}

RunRanks ranks_of(const Hosts& hosts, std::size_t slots, std::size_t slot_bytes,
                  const Setting& setting = {}) {
  return [=](const std::function<void(int rank, const RunAllreduce&)>& body) {
    const auto run = [&](const Topology& topology, const std::shared_ptr<Hierarchy>& hierarchy) {
      body(topology.rank, [&](const AllreduceCall& call) {
        HierarchicalAllreduce operation(hierarchy, call);
        finish(operation);
      });
    };
    run_hosts(hosts, slots, slot_bytes, run, setting);
  };
}

const std::vector<Hosts> kPlacements = {
    {0, 0, 1, 1},        // two ranks each
    {0, 1, 0},           // one host has a rank more
    {0, 1, 2, 0},        // three hosts
    {0, 0, 0, 1, 1, 1},  // more shards than slots of 128 bytes have lines
};

[[maybe_unused]] const bool kRegistered = [] {
  for (const Hosts& hosts : kPlacements) {
    std::string name;
    for (const int host : hosts) name += std::to_string(host);
    const int ranks = static_cast<int>(hosts.size());
    add_case("every op of every type over hosts " + name, "",
             [hosts, ranks] { check_every_op(ranks, ranks_of(hosts, 2, 128)); });
    add_case("every algorithm reduces every type over hosts " + name, "", [hosts, ranks] {
      for (const Algorithm algorithm : algorithms_of(Collective::Allreduce)) {
        check_absent(ranks, ranks_of(hosts, 3, 4096, {algorithm}));
      }
    });
    const std::set<int> different(hosts.begin(), hosts.end());
    add_case("elements are sent as halves over hosts " + name, "",
             [hosts, ranks, count = static_cast<int>(different.size())] {
               for (const std::size_t slot_bytes : {128, 4096}) {
                 check_wire_dtypes(ranks, count, ranks_of(hosts, 2, slot_bytes));
               }
             });
  }
  return true;
}();

TEST_CASE(
    "exact results over hosts are the same bits whatever the slot buffer, and from run to run") {
  for (const DataType dtype : {DataType::F32, DataType::BF16}) {
    const std::vector<Call> calls = {
        {{dtype, ReduceOp::Sum, 0.3, 1.7, 4}, {1000, 1, 0, 333}, false},
        {{dtype, ReduceOp::Average, 1.0, 1.0, 4}, {4097}, true},
        {{DataType::F32, ReduceOp::Sum, 0.3, 1.7, 4, DataType::F16}, {4097, 3}, false}};
    const Hosts hosts = {0, 1, 2, 0};
    const Setting exact = {.exact = true};
    const auto first = results_of(calls, ranks_of(hosts, 4, 128 << 10, exact));
    CHECK(results_of(calls, ranks_of(hosts, 4, 128 << 10, exact)) == first);
    CHECK(results_of(calls, ranks_of(hosts, 1, 192, exact)) == first);
    CHECK(results_of(calls, ranks_of(hosts, 2, 4096, exact)) == first);
    const auto by_ring = ranks_of(hosts, 2, 4096, {Algorithm::Ring});
    CHECK(results_of(calls, by_ring) == results_of(calls, by_ring));
  }
}

/// Returns the bytes that each of two hosts sends in a sum of `count` floats.
std::vector<std::uint64_t> sent_bytes(const Hosts& hosts, std::size_t count,
                                      std::optional<DataType> wire_dtype) {
  std::vector<std::uint64_t> sent(2, 0);
  std::mutex mutex;
  MemoryHosts memory(hosts, 4, 4096);
  run_contexts(hosts, [&](int rank, const BackendContext& context) {
    const Topology& topology = *context.topology;
    const std::shared_ptr<Fabric> fabric = memory.network->fabric(rank);
    const auto hierarchy = memory.hierarchy(topology, fabric);
    context.exchange({});
    std::vector<float> data(count, 1.0F);
    const Segment segment = {data.data(), data.data(), count};
    HierarchicalAllreduce operation(hierarchy,
                                    {.segments = {&segment, 1}, .wire_dtype = wire_dtype});
    finish(operation);
    const std::lock_guard lock(mutex);
    const StatsGroup stats = fabric->stats();
    sent.at(static_cast<std::size_t>(topology.host_of.at(static_cast<std::size_t>(rank)))) +=
        counter_of(stats, "sent_bytes");
    check(counter_of(stats, "unregistered_bytes") == 0, "all is sent from registered memory");
  });
  return sent;
}

TEST_CASE("hosts send the same bytes whatever the number of their ranks") {
  constexpr std::size_t kCount = 100'001;
  const std::vector<std::uint64_t> expected(2, kCount * sizeof(float));
  const std::vector<std::uint64_t> halves(2, kCount * 2);
  const std::vector<Hosts> placements = {{0, 1}, {0, 0, 1, 1}, {0, 0, 1}, {0, 0, 0, 1, 1, 1}};
  for (const Hosts& hosts : placements) {
    CAPTURE(hosts.size());
    CHECK(sent_bytes(hosts, kCount, {}) == expected);
    CHECK(sent_bytes(hosts, kCount, DataType::BF16) == halves);
  }
}

TEST_CASE("an operation that is given up keeps what its messages may touch") {
  std::vector<float> data(5000, 1.0F);
  const Segment segment = {data.data(), data.data(), data.size()};
  const Topology topology = make_topology(0, {0, 1});
  MemoryHosts hosts({0, 1}, 2, 4096);
  const auto hierarchy = hosts.hierarchy(topology);
  {
    // The other host never takes part.
    HierarchicalAllreduce operation(hierarchy, {.segments = {&segment, 1}});
    for (int i = 0; i < 100; ++i) CHECK_FALSE(operation.poll());
  }
  CHECK(hierarchy.use_count() > 1);
  CHECK_FALSE(hosts.network->take_kept().empty());
  CHECK(hierarchy.use_count() == 1);
}

}  // namespace
}  // namespace ronde::test

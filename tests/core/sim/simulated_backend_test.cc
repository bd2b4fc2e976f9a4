// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/simulated_backend.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ronde/algorithms.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kKiB = 1024;

/// Without gaps between messages, and with memory of hosts that costs nothing: times are then those
/// of Hockney's model, with alpha = 2 o + L, beta = G and gamma of the reduction.
SimulationOptions options_of(std::vector<int> host_of, const std::string& allreduce = "auto") {
  SimulationOptions options;
  options.host_of = std::move(host_of);
  options.config.allreduce = allreduce;
  options.network.gap = 0;
  options.host.bytes_shared = 0;
  return options;
}

std::vector<int> hosts_of(int hosts, int ranks) {
  std::vector<int> host_of;
  for (int rank = 0; rank < hosts * ranks; ++rank) host_of.push_back(rank / ranks);
  return host_of;
}

double hockney(const SimulationOptions& options, const CostTerms& terms) {
  const LinkCosts costs{2 * options.network.overhead + options.network.latency,
                        options.network.gap_per_byte, options.host.bytes_reduced};
  return costs.seconds(terms);
}

/// Ranks that have nothing but backends, and buffers of no memory.
class Ranks {
 public:
  explicit Ranks(const SimulationOptions& given) : options(given), ended(given.host_of.size()) {
    options.on_message = [this](const SimulatedMessage& message) { messages.push_back(message); };
    network = std::make_unique<SimulatedNetwork>(events, options);
    factory = simulated_backend_factory(*network, events, options, [this](int rank) {
      ended[static_cast<std::size_t>(rank)] = events.now().time_since_epoch();
    });
    BackendContext context;
    for (int rank = 0; rank < std::ssize(ended); ++rank) {
      context.topology = &topologies.emplace_back(make_topology(rank, options.host_of));
      backends.push_back(factory.create(context));
    }
    operations.resize(ended.size());
  }

  /// Starts the operation of a rank.
  void start(std::size_t rank, const auto& call) { operations[rank] = call(*backends[rank]); }
  void allreduce(std::size_t rank, std::size_t count, DataType dtype = DataType::F32,
                 std::optional<DataType> wire = {}) {
    const Segment all = {nullptr, nullptr, count};
    start(rank, [&](Backend& backend) {
      return backend.allreduce({.segments = {&all, 1}, .dtype = dtype, .wire_dtype = wire});
    });
  }
  void allreduce_on_all(std::size_t bytes) {
    for (std::size_t rank = 0; rank < backends.size(); ++rank) allreduce(rank, bytes / 4);
  }

  void run() {
    while (!events.empty()) events.run_next();
  }
  bool all_have_ended() {
    return std::ranges::all_of(operations, [](const auto& each) { return each->poll(); });
  }
  /// Returns when the last operation ended, in seconds.
  double seconds() {
    run();
    CHECK(all_have_ended());
    return std::chrono::duration<double>(*std::ranges::max_element(ended)).count();
  }
  std::uint64_t bytes_sent_by(int rank) const {
    std::uint64_t bytes = 0;
    for (const SimulatedMessage& each : messages) bytes += each.from == rank ? each.bytes : 0;
    return bytes;
  }

  SimulationOptions options;
  std::vector<SimulatedMessage> messages;
  std::vector<nanoseconds> ended;
  EventQueue events;
  std::unique_ptr<SimulatedNetwork> network;
  BackendFactory factory;
  std::deque<Topology> topologies;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Operation>> operations;
};

TEST_CASE("allreduces of one rank a host take the time and the bytes of Hockney's model") {
  struct Case {
    Algorithm algorithm;
    int hosts;
  };
  const auto [algorithm, hosts] = GENERATE(values<Case>({{Algorithm::Ring, 2},
                                                         {Algorithm::Ring, 3},
                                                         {Algorithm::Ring, 16},
                                                         {Algorithm::RecursiveDoubling, 2},
                                                         {Algorithm::RecursiveDoubling, 16},
                                                         {Algorithm::HalvingDoubling, 16}}));
  CAPTURE(to_string(algorithm), hosts);
  const SimulationOptions options =
      options_of(hosts_of(hosts, 1), std::string(to_string(algorithm)));
  const std::size_t bytes = 48 * 16 * kKiB;
  Ranks ranks(options);
  ranks.allreduce_on_all(bytes);
  const CostTerms terms =
      cost_terms(Collective::Allreduce, algorithm, static_cast<std::size_t>(hosts), bytes);
  CHECK(ranks.seconds() == Approx(hockney(options, terms)).epsilon(1e-4));
  CHECK(ranks.messages.size() == static_cast<std::size_t>(terms.messages * hosts));
  CHECK(static_cast<double>(ranks.bytes_sent_by(hosts - 1)) == terms.bytes);
}

TEST_CASE("large messages go in pieces, whose reduction overlaps with the next ones") {
  SimulationOptions options = options_of(hosts_of(2, 1), "ring");
  options.config.fusion_bytes = std::uint64_t{1} << 30;
  options.host.bytes_reduced = 0.9e-9;  // almost as long as to send them
  Ranks ranks(options);
  constexpr std::size_t kBytes = std::size_t{1} << 20;  // the largest chunk of two ranks
  for (int i = 0; i < 2; ++i) ranks.allreduce(static_cast<std::size_t>(i), 16 * kBytes / 4);
  const CostTerms terms = cost_terms(Collective::Allreduce, Algorithm::Ring, 2, 16 * kBytes);
  const double one_after_the_other = hockney(options, terms);
  CHECK(ranks.seconds() < 0.8 * one_after_the_other);
  CHECK(ranks.seconds() > options.network.gap_per_byte * terms.bytes);
}

TEST_CASE("a broadcast of one rank a host takes the time of Hockney's model") {
  SimulationOptions options = options_of(hosts_of(8, 1));
  options.config.broadcast = "binomial";
  Ranks ranks(options);
  const std::size_t bytes = 100 * kKiB;
  const Segment all = {nullptr, nullptr, bytes};
  for (std::size_t rank = 0; rank < 8; ++rank) {
    ranks.start(rank, [&](Backend& backend) {
      return backend.broadcast({.segments = {&all, 1}, .dtype = DataType::U8, .root = 3});
    });
  }
  const CostTerms terms = cost_terms(Collective::Broadcast, Algorithm::Binomial, 8, bytes);
  CHECK(ranks.seconds() == Approx(hockney(options, terms)).epsilon(1e-4));
}

TEST_CASE("ranks of equal local rank exchange a shard, and share the link of their host") {
  SimulationOptions options = options_of(hosts_of(2, 2));
  options.host.bytes_shared = 0.2e-9;
  Ranks ranks(options);
  const double bytes = 256 * kKiB;
  ranks.allreduce_on_all(256 * kKiB);
  // Two shards, each of which halves and doubles in messages of a quarter of the bytes.
  const double memory = (0.5 + 1 + 1) * bytes * options.host.bytes_shared;
  const double between = hockney(options, {2, 2 * 2 * bytes / 4, bytes / 4});
  CHECK(ranks.seconds() == Approx(memory + between).epsilon(1e-4));
  CHECK(ranks.messages.size() == 8);
  for (const SimulatedMessage& message : ranks.messages) CHECK(message.from % 2 == message.to % 2);
}

TEST_CASE("on uneven hosts, the ranks that the smallest one lacks own no shard") {
  Ranks ranks(options_of({0, 0, 0, 1}));
  ranks.allreduce_on_all(256 * kKiB);
  ranks.seconds();
  CHECK(ranks.bytes_sent_by(0) == 256 * kKiB);
  CHECK(ranks.bytes_sent_by(3) == 256 * kKiB);
  CHECK(ranks.bytes_sent_by(1) + ranks.bytes_sent_by(2) == 0);
}

TEST_CASE("one host uses its memory alone, and no phase ends before all ranks have entered") {
  SimulationOptions options = options_of(hosts_of(1, 4));
  options.host.bytes_shared = 1e-9;
  Ranks ranks(options);
  constexpr auto kLate = std::chrono::milliseconds(1);
  for (std::size_t rank = 0; rank < 3; ++rank) ranks.allreduce(rank, 100 * kKiB / 4);
  ranks.events.at(TimePoint(kLate), [&] { ranks.allreduce(3, 100 * kKiB / 4); });
  const double memory = (0.75 + 1 + 1) * 100 * kKiB * 1e-9;
  CHECK(ranks.seconds() == Approx(1e-3 + memory).epsilon(1e-4));
  CHECK(ranks.messages.empty());
}

TEST_CASE("a rank that is alone has nothing to do") {
  SimulationOptions options = options_of({0});
  options.host.bytes_shared = 1;
  Ranks ranks(options);
  ranks.allreduce_on_all(kKiB);
  CHECK(ranks.seconds() == 0);
}

TEST_CASE("half types travel between hosts as real backends send them") {
  const std::size_t count = 128 * kKiB;
  const auto sent = [&](std::vector<int> host_of, DataType dtype, std::optional<DataType> wire) {
    Ranks ranks(options_of(std::move(host_of)));
    for (std::size_t rank = 0; rank < ranks.backends.size(); ++rank) {
      ranks.allreduce(rank, count, dtype, wire);
    }
    ranks.seconds();
    return ranks.bytes_sent_by(0);
  };
  const std::vector<int> flat = {0, 1};
  const std::vector<int> uneven = {0, 0, 1};
  CHECK(sent(flat, DataType::F32, {}) == 4 * count);
  CHECK(sent(flat, DataType::F16, {}) == 4 * count);  // widened
  CHECK(sent(flat, DataType::F32, DataType::BF16) == 2 * count);
  CHECK(sent(uneven, DataType::F32, {}) == 4 * count);
  CHECK(sent(uneven, DataType::F16, {}) == 3 * count);  // sums as f32, results as f16
  CHECK(sent(uneven, DataType::F32, DataType::F16) == 2 * count);
}

TEST_CASE("without fusion, data still goes in chunks") {
  SimulationOptions options = options_of(hosts_of(2, 1), "recursive_doubling");
  options.config.fusion_bytes = 0;
  Ranks ranks(options);
  ranks.allreduce_on_all(5 * 1024 * kKiB);
  ranks.seconds();
  CHECK(ranks.messages.size() == 2 * 5);
}

TEST_CASE("the rules of RONDE_ALGORITHMS choose the algorithm") {
  SimulationOptions options = options_of(hosts_of(8, 1));
  options.config.algorithms = "allreduce:ring,allreduce/8:recursive_doubling@64KiB";
  const auto messages = [&](std::size_t bytes) {
    Ranks ranks(options);
    ranks.allreduce_on_all(bytes);
    ranks.seconds();
    return ranks.messages.size();
  };
  CHECK(messages(60 * kKiB) == 8 * 14);
  CHECK(messages(64 * kKiB) == 8 * 3);
}

TEST_CASE("within one host, the root of a broadcast stages it for the others") {
  SimulationOptions options = options_of(hosts_of(1, 3));
  options.host.bytes_shared = 1e-9;
  Ranks ranks(options);
  const Segment all = {nullptr, nullptr, 100 * kKiB};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks.start(rank, [&](Backend& backend) {
      return backend.broadcast({.segments = {&all, 1}, .dtype = DataType::U8, .root = 1});
    });
  }
  CHECK(ranks.seconds() == Approx(2 * 100 * kKiB * 1e-9).epsilon(1e-4));
  CHECK(ranks.messages.empty());
}

TEST_CASE("what programs of simulations do not have is refused") {
  Ranks ranks(options_of({0, 1}));
  CHECK_THROWS_AS(ranks.backends[0]->alltoall({}), UsageError);
}

TEST_CASE("a backend must be polled before it sleeps, once an operation has ended") {
  Ranks ranks(options_of(hosts_of(2, 1)));
  ranks.allreduce_on_all(kKiB);
  CHECK(ranks.backends[0]->prepare_sleep() == 0);
  ranks.run();
  CHECK(ranks.backends[0]->prepare_sleep() == -1);
  CHECK(ranks.operations[0]->poll());
  CHECK(ranks.backends[0]->prepare_sleep() == 0);
}

TEST_CASE("operations of a dead rank never end, and those that are given up leave nothing") {
  Ranks ranks(options_of(hosts_of(2, 2)));
  ranks.allreduce_on_all(1024 * kKiB);
  ranks.events.at(TimePoint(nanoseconds(100'000)), [&] {
    ranks.network->cut(3);
    ranks.operations[3] = nullptr;
    ranks.backends[3] = nullptr;
  });
  ranks.run();
  CHECK_FALSE(ranks.operations[0]->poll());
  CHECK_FALSE(ranks.operations[1]->poll());
  ranks.operations.clear();
  ranks.backends.clear();
}

TEST_CASE("an operation waits for a stopped rank") {
  Ranks ranks(options_of(hosts_of(2, 1)));
  ranks.allreduce_on_all(100 * kKiB);
  ranks.network->stop(1);
  ranks.run();
  CHECK_FALSE(ranks.operations[0]->poll());
  ranks.network->go_on(1);
  ranks.seconds();
}

TEST_CASE("two simulations of the same operations are equal") {
  const auto run = [] {
    SimulationOptions options = options_of(hosts_of(5, 3));
    options.network.gap = 1e-6;
    options.host.bytes_shared = 0.2e-9;
    Ranks ranks(options);
    ranks.allreduce_on_all(10'000 * kKiB);
    ranks.seconds();
    std::vector<std::tuple<int, int, std::uint64_t, nanoseconds, nanoseconds>> all;
    for (const SimulatedMessage& each : ranks.messages) {
      all.emplace_back(each.from, each.to, each.bytes, each.sent, each.arrived);
    }
    return all;
  };
  CHECK(run() == run());
}

}  // namespace
}  // namespace ronde

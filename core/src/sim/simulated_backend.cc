// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/simulated_backend.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/peer_messages.h"
#include "core/src/algorithms/shards.h"
#include "core/src/sim/host_rounds.h"
#include "ronde/algorithms.h"
#include "ronde/error.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde {
namespace {

/// Chunks of PackingBackend that are in progress over a fabric.
constexpr std::size_t kPackedSlots = 3;

/// MessageTag::channel of broadcasts, and between the owners of a shard.
constexpr std::uint32_t kAllRanks = 0;
constexpr std::uint32_t kOwners = 1;

/// The address of data that is never accessed.
std::byte* nowhere() {
  static std::byte never_accessed;
  return &never_accessed;
}

/// Returns the bytes of a chunk of PackingBackend.
std::size_t packed_bytes(std::uint64_t fusion_bytes, std::size_t ranks) {
  constexpr std::size_t kShare = std::size_t{512} << 10;
  constexpr std::uint64_t kWithoutFusion = std::uint64_t{64} << 20;
  const auto all = static_cast<std::size_t>(fusion_bytes > 0 ? fusion_bytes : kWithoutFusion);
  const std::size_t slot = std::max(rounded_up(all / kPackedSlots, 64), 8 * (ranks + 1));
  return std::min(slot, kShare * ranks);
}

/// What the ranks have in common.
struct Group {
  EventQueue& events;
  SimulatedNetwork& network;
  const SimulationOptions& options;
  const std::function<void(int rank)> wake;
  MessageExchange exchange{network, options};
  std::map<int, HostRounds> hosts = {};
  std::deque<RankRounds> ranks = {};
};

/// The division of allreduces; operations may outlive their backend.
struct Division {
  Shards shards;
  std::size_t local_ranks = 1;
  std::size_t round_bytes = 1;
  bool is_packed = false;  ///< one rank a host: by PackingBackend
  bool exact = false;
  AlgorithmTable algorithms = AlgorithmTable();
  std::shared_ptr<const FabricChannel> owners = nullptr;  ///< of the own shard, by host
};

/// The shape of an allreduce.
struct Format {
  DataType sums = DataType::F32;  ///< between hosts
  std::size_t width = 4;          ///< bytes of an element within a host, and of results
  bool converts = false;          ///< has a wire_dtype
};

Format format_of(const AllreduceCall& call, bool is_packed) {
  Format format;
  const DataType wire = call.effective_wire_dtype();
  format.converts = call.wire_dtype.has_value();
  format.sums = is_half(wire) && !format.converts ? DataType::F32 : wire;
  format.width = size_of(is_packed ? format.sums : wire);
  return format;
}

std::uint32_t stream_of(std::uint64_t round) {
  return static_cast<std::uint32_t>(round % Fabric::kStreams);
}

/// Reduces the shard of a round between hosts, as HierarchicalAllreduce::exchange() does.
Steps exchange_shard(std::shared_ptr<const Division> division, Shards::Round round, Format format) {
  const Shards& shards = division->shards;
  PeerMessages messages(division->owners, stream_of(round.number));
  const std::size_t count = shards.shard(*shards.own, round, format.width).count();
  const std::vector<std::size_t> counts =
      division->is_packed ? even_counts(count, shards.hosts) : shards.parts(round, format.width);
  const Parts sums(counts, size_of(format.sums));
  const Parts results(counts, format.width);
  const Reduction reduction = {.dtype = format.sums};
  const Algorithm algorithm =
      format.converts || division->exact
          ? Algorithm::Pairwise
          : division->algorithms.choose(Collective::Allreduce, shards.hosts, sums.total());
  const bool halves = algorithm == Algorithm::HalvingDoubling;
  if (algorithm == Algorithm::RecursiveDoubling) {
    co_await recursive_doubling_allreduce(messages, nowhere(), count, reduction);
  } else if (halves && !std::has_single_bit(shards.hosts)) {
    co_await halving_doubling_allreduce(messages, nowhere(), count, reduction);
  } else {
    Algorithm gather = halves ? Algorithm::RecursiveDoubling : algorithm;
    if (division->is_packed && format.converts) {  // PackingBackend calls an allgather
      gather = division->algorithms.choose(Collective::Allgather, shards.hosts, results.total());
    }
    co_await reducescatter_by(messages, nowhere(), nowhere(), sums, reduction,
                              halves ? Algorithm::Halving : algorithm);
    co_await allgather_by(messages, nowhere(), results, gather);
  }
}

/// Returns what a rank does in a round. It need not stage the shard that it reduces itself.
RoundWork allreduce_work(const std::shared_ptr<const Division>& division, const Format& format,
                         const Shards::Round& round) {
  const Shards& shards = division->shards;
  if (shards.hosts * division->local_ranks == 1) return {};
  const std::size_t bytes = round.elements * format.width;
  std::size_t own = 0;
  if (shards.own) own = shards.shard(*shards.own, round, format.width).count() * format.width;
  RoundWork work = {
      .staged = bytes - own, .reduced = own * division->local_ranks, .consumed = bytes};
  if (own > 0 && shards.hosts > 1) {
    work.exchange = [=] { return exchange_shard(division, round, format); };
  }
  return work;
}

Steps exchange_broadcast(std::shared_ptr<const FabricChannel> channel, std::uint64_t round,
                         std::size_t bytes, std::size_t root, Algorithm algorithm) {
  PeerMessages messages(std::move(channel), stream_of(round));
  co_await broadcast_by(messages, nowhere(), bytes, root, algorithm);
}

/// The data plane of a simulated rank. See Note [Simulated operations].
///
/// Thread-safety: none.
class SimulatedBackend final : public Backend {
 public:
  SimulatedBackend(std::shared_ptr<Group> group, const Topology& topology);

  std::string_view name() const noexcept override { return "simulated"; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& /*call*/) override { refuse(); }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& /*call*/) override { refuse(); }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& /*call*/) override { refuse(); }
  std::unique_ptr<Operation> send(const SendCall& /*call*/) override { refuse(); }
  std::unique_ptr<Operation> recv(const RecvCall& /*call*/) override { refuse(); }
  int prepare_sleep() override { return rounds_->has_unpolled() ? -1 : 0; }
  void abort() noexcept override {}
  void close() override {}
  StatsGroup stats() const override { return {"simulated", {}}; }

 private:
  [[noreturn]] static void refuse() {
    throw UsageError("a simulation has allreduces and broadcasts alone");
  }
  std::shared_ptr<const FabricChannel> channel(std::uint32_t number, std::vector<int> peers,
                                               std::size_t rank) const;
  std::unique_ptr<Operation> in_rounds(std::uint64_t rounds, RoundsOperation::WorkOf work_of) {
    return std::make_unique<RoundsOperation>(*rounds_, rounds, std::move(work_of));
  }
  bool is_on_one_host() const noexcept { return topology_.hosts() == 1; }

  const std::shared_ptr<Group> group_;
  const Topology& topology_;
  const std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<const Division> division_;
  RankRounds* rounds_ = nullptr;
  std::shared_ptr<const FabricChannel> all_ranks_;  ///< made for the first broadcast
};

SimulatedBackend::SimulatedBackend(std::shared_ptr<Group> group, const Topology& topology)
    : group_(std::move(group)),
      topology_(topology),
      fabric_(group_->exchange.make_fabric(topology.rank)) {
  const Config& config = group_->options.config;
  Division division;
  division.local_ranks = static_cast<std::size_t>(topology_.local_size);
  division.is_packed = !is_on_one_host() && topology_.hosts() == topology_.size;
  const bool is_hierarchical = !is_on_one_host() && !division.is_packed;
  division.shards = shards_of(topology_, is_hierarchical ? kLeastMessage : 0);
  division.exact = config.exact;
  division.algorithms = algorithm_table(config);
  division.round_bytes = division.is_packed
                             ? packed_bytes(config.fusion_bytes, division.shards.hosts)
                             : round_bytes(division.shards);
  if (division.shards.own && !is_on_one_host()) {
    division.owners = channel(kOwners, division.shards.owners, division.shards.own_host);
  }
  HostRounds& host =
      group_->hosts[group_->options.host_of[static_cast<std::size_t>(topology.rank)]];
  host.ranks = division.local_ranks;
  host.seconds_per_byte = group_->options.host.bytes_shared;
  if (host.slots.empty()) {
    const std::size_t slots = division.is_packed ? kPackedSlots : kRoundSlots;
    for (std::uint64_t round = 0; round < slots; ++round) host.slots.push_back({.round = round});
  }
  rounds_ = &group_->ranks.emplace_back(
      group_->events, group_->network, group_->exchange, host, topology.rank,
      [&wake = group_->wake, rank = topology.rank] { wake(rank); });
  division_ = std::make_shared<const Division>(std::move(division));
}

std::shared_ptr<const FabricChannel> SimulatedBackend::channel(std::uint32_t number,
                                                               std::vector<int> peers,
                                                               std::size_t rank) const {
  FabricChannel channel;
  channel.fabric = fabric_;
  channel.peers = std::move(peers);
  channel.rank = rank;
  channel.number = number;
  channel.simulate_reduction = [&group = *group_, own = topology_.rank](std::size_t bytes) {
    const double seconds = static_cast<double>(bytes) * group.options.host.bytes_reduced;
    group.network.charge(own, from_s(seconds));
  };
  return std::make_shared<const FabricChannel>(std::move(channel));
}

Capabilities SimulatedBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.dtypes.set();
  capabilities.ops.set();
  capabilities.set_wire_dtypes();
  capabilities.wants_packed = false;
  capabilities.widen_halves = division_->is_packed;
  capabilities.waiting = Waiting::Descriptor;
  // As in the real backends.
  const std::size_t between_hosts = division_->is_packed ? kPackedSlots : 2;
  capabilities.operations_in_flight = is_on_one_host() ? 1 : between_hosts;
  return capabilities;
}

std::unique_ptr<Operation> SimulatedBackend::allreduce(const AllreduceCall& call) {
  const Format format = format_of(call, division_->is_packed);
  const std::size_t total = total_elements(call.segments);
  // PackingBackend fills its chunks.
  const std::size_t each = division_->is_packed
                               ? division_->round_bytes / format.width
                               : chunk_elements(total, format.width, division_->round_bytes);
  const std::size_t rounds = total == 0 ? 1 : (total + each - 1) / each;
  return in_rounds(rounds, [=, division = division_](std::uint64_t index, std::uint64_t number) {
    const auto begin = static_cast<std::size_t>(index) * each;
    return allreduce_work(division, format, {number, std::min(each, total - begin)});
  });
}

std::unique_ptr<Operation> SimulatedBackend::broadcast(const BroadcastCall& call) {
  const std::size_t bytes = total_elements(call.segments) * size_of(call.dtype);
  RoundWork work;
  if (is_on_one_host()) {
    (topology_.rank == call.root ? work.staged : work.consumed) = bytes;
    return in_rounds(1, [work](auto, auto) { return work; });
  }
  const auto ranks = static_cast<std::size_t>(topology_.size);
  if (!all_ranks_) {
    std::vector<int> peers(ranks);
    std::iota(peers.begin(), peers.end(), 0);
    all_ranks_ = channel(kAllRanks, std::move(peers), static_cast<std::size_t>(topology_.rank));
  }
  const Algorithm by = division_->algorithms.choose(Collective::Broadcast, ranks, bytes);
  work.waits = false;
  return in_rounds(1, [=, root = static_cast<std::size_t>(call.root), channel = all_ranks_](
                          auto, std::uint64_t number) {
    RoundWork of_round = work;
    of_round.exchange = [=] { return exchange_broadcast(channel, number, bytes, root, by); };
    return of_round;
  });
}

}  // namespace

BackendFactory simulated_backend_factory(SimulatedNetwork& network, EventQueue& events,
                                         const SimulationOptions& options,
                                         std::function<void(int rank)> wake) {
  const auto group = std::make_shared<Group>(Group{events, network, options, std::move(wake)});
  BackendFactory factory;
  factory.create = [group](BackendContext& context) {
    return std::make_unique<SimulatedBackend>(group, *context.topology);
  };
  return factory;
}

}  // namespace ronde

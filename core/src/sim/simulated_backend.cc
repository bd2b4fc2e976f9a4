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
#include "core/src/base/counter.h"
#include "core/src/sim/host_rounds.h"
#include "ronde/algorithms.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde {
namespace {

/// Slots of PackingBackend over a fabric, and the bytes of a rank in a chunk.
constexpr std::size_t kPackedSlots = 3;
constexpr std::size_t kPackedShare = std::size_t{512} << 10;

/// Of the messages between the owners of a shard; the others have the number of the process set.
constexpr std::uint32_t kShardChannels = 1U << 31;

/// The address of data that is never accessed.
std::byte* nowhere() {
  static std::byte never_accessed;
  return &never_accessed;
}

/// The ranks of all process sets.
struct Group {
  SimulatedWorld world;
  const AlgorithmTable algorithms;
  std::map<std::pair<std::uint32_t, int>, HostRounds> hosts = {};  ///< by set and host
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

/// The algorithms of the two halves of an allreduce.
struct Halves {
  Algorithm scatter, gather;
};

Halves halves_of(const Division& division, const Format& format, Algorithm whole,
                 std::uint64_t bytes) {
  if (whole == Algorithm::HalvingDoubling) {
    return {Algorithm::Halving, Algorithm::RecursiveDoubling};
  }
  // PackingBackend has an allgather of its own for them.
  const bool chooses = division.is_packed && format.converts;
  if (!chooses) return {whole, whole};
  return {whole, division.algorithms.choose(Collective::Allgather, division.shards.hosts, bytes)};
}

/// Reduces the shard of a round between hosts, as HierarchicalAllreduce::exchange() does.
Steps exchange_shard(std::shared_ptr<const Division> division, Shards::Round round, Format format) {
  const Shards& shards = division->shards;
  PeerMessages messages(division->owners,
                        static_cast<std::uint32_t>(round.number % Fabric::kStreams));
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
    const Halves by = halves_of(*division, format, algorithm, results.total());
    co_await reducescatter_by(messages, nowhere(), nowhere(), sums, reduction, by.scatter);
    co_await allgather_by(messages, nowhere(), results, by.gather);
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

/// Returns a call for which no memory is accessed.
template <typename Call>
Call at_nowhere(Call call) {
  call.input = nowhere();
  call.output = nowhere();
  return call;
}

/// An operation of FabricBackend.
class FlatOperation final : public SimulatedOperation, public Progressing {
 public:
  template <typename Start>
  FlatOperation(SimulatedWorld& world, int rank, std::shared_ptr<std::size_t> unpolled, Start start)
      : SimulatedOperation(world, rank, std::move(unpolled)), exchange_(world.exchange) {
    {
      const MessageExchange::Owner owner(exchange_, *this);
      operation_ = start();
    }
    advance();
  }

  void advance() override {
    if (!operation_) return;
    const MessageExchange::Owner owner(exchange_, *this);
    if (!operation_->poll()) return;
    operation_ = nullptr;
    end();
  }

 private:
  MessageExchange& exchange_;
  std::unique_ptr<Operation> operation_;
};

/// The data plane of a simulated rank. See Note [Simulated operations].
///
/// Thread-safety: none.
class SimulatedBackend final : public Backend {
 public:
  SimulatedBackend(std::shared_ptr<Group> group, const BackendContext& context);

  std::string_view name() const noexcept override { return "simulated"; }
  Capabilities capabilities() const override;
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override;
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override;
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override;
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override;
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override;
  std::unique_ptr<Operation> send(const SendCall& call) override {
    SendCall simulated = call;
    simulated.input = nowhere();
    return flat(simulated, &Backend::send);
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    RecvCall simulated = call;
    simulated.output = nowhere();
    return flat(simulated, &Backend::recv);
  }
  int prepare_sleep() override { return *unpolled_ > 0 ? -1 : 0; }
  void abort() noexcept override {}
  void close() override {}
  StatsGroup stats() const override;

 private:
  FabricChannel channel(std::uint32_t number, std::vector<int> peers, std::size_t rank) const;
  std::unique_ptr<Operation> in_rounds(std::uint64_t rounds, RoundsOperation::WorkOf work_of);
  template <typename Call>
  std::unique_ptr<Operation> flat(const Call& call,
                                  std::unique_ptr<Operation> (Backend::*start)(const Call&));
  std::unique_ptr<Operation> through_memory(const RoundWork& work) {
    return in_rounds(1, [work](auto, auto) { return work; });
  }
  bool is_on_one_host() const noexcept { return topology_.hosts() == 1; }
  std::size_t own() const noexcept { return static_cast<std::size_t>(topology_.rank); }

  const std::shared_ptr<Group> group_;
  const Topology& topology_;  ///< of the process set
  const std::uint32_t set_;
  const std::vector<int> ranks_;  ///< of the process set; empty: all ranks
  const int rank_;                ///< in the group
  const std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<const Division> division_;
  RankRounds* rounds_ = nullptr;
  std::unique_ptr<Backend> flat_;  ///< made when it is first needed
  const std::shared_ptr<std::size_t> unpolled_ = std::make_shared<std::size_t>(0);
  Counter operations_, rounds_begun_;
};

SimulatedBackend::SimulatedBackend(std::shared_ptr<Group> group, const BackendContext& context)
    : group_(std::move(group)),
      topology_(*context.topology),
      set_(context.set),
      ranks_(context.set == 0 ? std::vector<int>() : context.ranks),
      rank_(context.ranks[own()]),
      fabric_(group_->world.exchange.make_fabric(rank_)) {
  const Config& config = group_->world.options.config;
  Division division;
  division.local_ranks = static_cast<std::size_t>(topology_.local_size);
  division.is_packed = topology_.hosts() > 1 && topology_.hosts() == topology_.size;
  const bool is_hierarchical = !is_on_one_host() && !division.is_packed;
  division.shards = shards_of(topology_, is_hierarchical ? kLeastMessage : 0);
  division.exact = config.exact;
  division.algorithms = group_->algorithms;
  division.round_bytes = division.is_packed
                             ? std::min<std::size_t>(config.fusion_bytes / kPackedSlots,
                                                     kPackedShare * division.shards.hosts)
                             : round_bytes(division.shards);
  if (division.shards.own && !is_on_one_host()) {
    std::vector<int> owners = division.shards.owners;
    if (!ranks_.empty()) {
      for (int& owner : owners) owner = ranks_[static_cast<std::size_t>(owner)];
    }
    division.owners = std::make_shared<const FabricChannel>(
        channel(kShardChannels | set_, std::move(owners), division.shards.own_host));
  }
  HostRounds& host = group_->hosts[{set_, topology_.host_of[own()]}];
  host.ranks = division.local_ranks;
  if (host.slots.empty()) {
    const std::size_t slots = division.is_packed ? kPackedSlots : kRoundSlots;
    for (std::uint64_t round = 0; round < slots; ++round) host.slots.push_back({.round = round});
  }
  rounds_ = &group_->ranks.emplace_back(group_->world, rank_, host);
  division_ = std::make_shared<const Division>(std::move(division));
}

FabricChannel SimulatedBackend::channel(std::uint32_t number, std::vector<int> peers,
                                        std::size_t rank) const {
  FabricChannel channel;
  channel.fabric = fabric_;
  channel.peers = std::move(peers);
  channel.rank = rank;
  channel.number = number;
  channel.simulate_reduction = [&world = group_->world, own = rank_](std::size_t bytes) {
    world.network.charge(own,
                         from_s(static_cast<double>(bytes) * world.options.host.bytes_reduced));
  };
  return channel;
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
  capabilities.operations_in_flight = is_on_one_host()       ? 1
                                      : division_->is_packed ? kPackedSlots
                                                             : 2;
  return capabilities;
}

std::unique_ptr<Operation> SimulatedBackend::in_rounds(std::uint64_t rounds,
                                                       RoundsOperation::WorkOf work_of) {
  operations_.add();
  rounds_begun_.add(rounds);
  return std::make_unique<RoundsOperation>(*rounds_, unpolled_, rounds, std::move(work_of));
}

std::unique_ptr<Operation> SimulatedBackend::allreduce(const AllreduceCall& call) {
  const Format format = format_of(call, division_->is_packed);
  const std::size_t total = total_elements(call.segments);
  // PackingBackend fills its chunks.
  const std::size_t each = division_->is_packed
                               ? division_->round_bytes / format.width
                               : chunk_elements(total, format.width, division_->round_bytes);
  const std::size_t rounds = total == 0 ? 0 : (total + each - 1) / each;
  return in_rounds(rounds, [=, division = division_](std::uint64_t index, std::uint64_t number) {
    const auto begin = static_cast<std::size_t>(index) * each;
    return allreduce_work(division, format, {number, std::min(each, total - begin)});
  });
}

template <typename Call>
std::unique_ptr<Operation> SimulatedBackend::flat(
    const Call& call, std::unique_ptr<Operation> (Backend::*start)(const Call&)) {
  if (!flat_) {
    std::vector<int> peers = ranks_;
    if (peers.empty()) {
      peers.resize(static_cast<std::size_t>(topology_.size));
      std::iota(peers.begin(), peers.end(), 0);
    }
    flat_ = make_fabric_backend(channel(set_, std::move(peers), own()),
                                {.algorithms = group_->algorithms, .exact = division_->exact},
                                !is_on_one_host(), false);
  }
  operations_.add();
  return std::make_unique<FlatOperation>(group_->world, rank_, unpolled_,
                                         [&] { return (*flat_.*start)(call); });
}

std::unique_ptr<Operation> SimulatedBackend::broadcast(const BroadcastCall& call) {
  const Segment all = {nowhere(), nowhere(), total_elements(call.segments)};
  const std::size_t bytes = all.count * size_of(call.dtype);
  if (is_on_one_host()) {
    const bool is_root = topology_.rank == call.root;
    return through_memory({.staged = is_root ? bytes : 0, .consumed = is_root ? 0 : bytes});
  }
  return flat({.segments = {&all, 1}, .dtype = call.dtype, .root = call.root}, &Backend::broadcast);
}

std::unique_ptr<Operation> SimulatedBackend::allgather(const AllgatherCall& call) {
  const Parts parts(call.counts, size_of(call.dtype));
  if (is_on_one_host()) {
    return through_memory({.staged = parts.count(own()), .consumed = parts.total()});
  }
  return flat(at_nowhere(call), &Backend::allgather);
}

std::unique_ptr<Operation> SimulatedBackend::alltoall(const AlltoallCall& call) {
  if (is_on_one_host()) {
    return through_memory({.staged = Parts(call.send_counts, size_of(call.dtype)).total(),
                           .consumed = Parts(call.receive_counts, size_of(call.dtype)).total()});
  }
  return flat(at_nowhere(call), &Backend::alltoall);
}

std::unique_ptr<Operation> SimulatedBackend::reducescatter(const ReducescatterCall& call) {
  const Parts parts(call.counts, size_of(call.dtype));
  if (is_on_one_host()) {
    return through_memory({.staged = parts.total(), .reduced = parts.size() * parts.count(own())});
  }
  return flat(at_nowhere(call), &Backend::reducescatter);
}

StatsGroup SimulatedBackend::stats() const {
  return {"simulated", {{"operations", operations_.get()}, {"rounds", rounds_begun_.get()}}};
}

}  // namespace

BackendFactory simulated_backend_factory(SimulatedNetwork& network, EventQueue& events,
                                         const SimulationOptions& options,
                                         std::function<void(int rank)> wake) {
  const auto group = std::make_shared<Group>(
      Group{{events, network, options, std::move(wake)}, algorithm_table(options.config)});
  BackendFactory factory;
  factory.serves_sets = true;
  factory.create = [group](BackendContext& context) {
    return std::make_unique<SimulatedBackend>(group, context);
  };
  return factory;
}

}  // namespace ronde

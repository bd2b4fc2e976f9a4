// SPDX-License-Identifier: Apache-2.0
// Each operation is a coroutine of one of the algorithms, with a stream of messages of its own.
#include "ronde/plugin/fabric_backend.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "core/src/algorithms/algorithms.h"
#include "core/src/algorithms/exchange.h"
#include "core/src/algorithms/peer_messages.h"
#include "core/src/base/counter.h"
#include "ronde/error.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde {

Steps broadcast_by(PeerMessages& messages, std::byte* data, std::size_t bytes, std::size_t root,
                   Algorithm algorithm) {
  if (algorithm == Algorithm::Binomial) return binomial_broadcast(messages, data, bytes, root);
  if (algorithm == Algorithm::VanDeGeijn) {
    return scatter_allgather_broadcast(messages, data, bytes, root);
  }
  return chain_broadcast(messages, data, bytes, root,
                         AlgorithmTable::chain_chunk(messages.size(), bytes));
}

Steps reducescatter_by(PeerMessages& messages, const std::byte* input, std::byte* output,
                       const Parts& parts, const Reduction& reduction, Algorithm algorithm) {
  const auto run = algorithm == Algorithm::Halving    ? halving_reducescatter
                   : algorithm == Algorithm::Pairwise ? pairwise_reducescatter
                                                      : ring_reducescatter;
  return run(messages, input, output, parts, reduction);
}

Steps allgather_by(PeerMessages& messages, std::byte* output, const Parts& parts,
                   Algorithm algorithm) {
  const bool doubles = algorithm == Algorithm::RecursiveDoubling;
  if (doubles) return recursive_doubling_allgather(messages, output, parts);
  if (algorithm == Algorithm::Bruck) return bruck_allgather(messages, output, parts);
  if (algorithm == Algorithm::Pairwise) return pairwise_allgather(messages, output, parts);
  return ring_allgather(messages, output, parts);
}

namespace {

// Collectives start in one order on all ranks, so that the n-th has the same stream on each. It
// posts no message before the last one of its stream has ended here, so that its messages are
// behind those of that one on every rank.
constexpr std::uint32_t kCollectiveStreams = Fabric::kStreams - 1;
/// Messages of a program start in the order that their two ranks agree on.
constexpr std::uint32_t kMessageStream = kCollectiveStreams;
constexpr std::size_t kInFlight = 4;

/// By a reduce-scatter and an allgather of the same algorithm.
Steps scatter_and_gather(PeerMessages& messages, std::byte* data, std::size_t count,
                         Reduction reduction, Algorithm algorithm) {
  const Parts parts(even_counts(count, messages.size()), size_of(reduction.dtype));
  std::byte* const own = data + parts.offset(messages.rank());
  co_await reducescatter_by(messages, data, own, parts, reduction, algorithm);
  co_await allgather_by(messages, data, parts, algorithm);
}

Steps allreduce_by(PeerMessages& messages, std::byte* data, std::size_t count,
                   const Reduction& reduction, Algorithm algorithm) {
  if (algorithm == Algorithm::RecursiveDoubling) {
    return recursive_doubling_allreduce(messages, data, count, reduction);
  }
  if (algorithm == Algorithm::HalvingDoubling) {
    return halving_doubling_allreduce(messages, data, count, reduction);
  }
  return scatter_and_gather(messages, data, count, reduction, algorithm);  // a ring, or pairwise
}

Steps send_message(PeerMessages& messages, std::size_t peer, const std::byte* from,
                   std::size_t bytes) {
  messages.send(peer, from, bytes);
  co_await messages.ended();
}

Steps receive_message(PeerMessages& messages, std::size_t peer, std::byte* to, std::size_t bytes) {
  messages.receive(peer, to, bytes);
  co_await messages.ended();
}

class AlgorithmOperation final : public Operation {
 public:
  /// `before`: whether the last operation of the stream has ended; null if there is none.
  AlgorithmOperation(std::shared_ptr<const FabricChannel> channel, std::uint32_t stream,
                     std::shared_ptr<const bool> before)
      : messages_(std::move(channel), stream), before_(std::move(before)) {}

  PeerMessages& messages() noexcept { return messages_; }
  std::shared_ptr<const bool> ended() const noexcept { return ended_; }

  /// Posts its first messages if it may. An error is thrown again by poll(): until then the fabric
  /// is not aborted, and the messages need their batches.
  void start(Steps steps) {
    steps_ = std::move(steps);
    try {
      poll();
    } catch (...) {  // poll() throws it
    }
  }

  bool poll() override {
    if (before_ && !*before_) return false;
    if (!*ended_) *ended_ = steps_.poll();
    return *ended_;
  }
  std::uint64_t progress() const override { return steps_.progress(); }

 private:
  PeerMessages messages_;
  Steps steps_;
  const std::shared_ptr<const bool> before_;
  const std::shared_ptr<bool> ended_ = std::make_shared<bool>(false);
};

/// Collectives of a process set by algorithms over a fabric.
///
/// Thread-safety: as Backend.
class FabricBackend final : public Backend {
 public:
  /// `between_hosts`: messages take long enough to leave the core to others meanwhile.
  FabricBackend(FabricChannel channel, const FabricBackendOptions& options, bool between_hosts,
                bool owns_fabric)
      : channel_(std::make_shared<const FabricChannel>(std::move(channel))),
        options_(options),
        between_hosts_(between_hosts),
        owns_fabric_(owns_fabric) {}

  std::string_view name() const noexcept override { return options_.name; }

  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.dtypes.set();
    capabilities.ops.set();
    if (between_hosts_) {
      const bool has_descriptor = channel_->fabric->descriptor() >= 0;
      capabilities.waiting = has_descriptor ? Waiting::Descriptor : Waiting::Pause;
    }
    capabilities.operations_in_flight = kInFlight;
    return capabilities;
  }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    const Segment& segment = only_segment(call.segments, name());
    const std::size_t bytes = segment.count * size_of(call.dtype);
    return start(bytes, next_stream(), [&](PeerMessages& messages) {
      return allreduce_by(
          messages, static_cast<std::byte*>(segment.output), segment.count,
          {.dtype = call.dtype, .op = call.op},
          choose(Collective::Allreduce, bytes, needs_rank_order(call.dtype, call.op)));
    });
  }

  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    const Segment& segment = only_segment(call.segments, name());
    auto* const data = static_cast<std::byte*>(segment.output);
    const std::size_t bytes = segment.count * size_of(call.dtype);
    const auto root = static_cast<std::size_t>(call.root);
    const auto* const input = static_cast<const std::byte*>(segment.input);
    return start(bytes, next_stream(), [&](PeerMessages& messages) {
      if (messages.rank() == root) messages.copy(data, input, bytes);
      return broadcast_by(messages, data, bytes, root, choose(Collective::Broadcast, bytes));
    });
  }

  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    const Parts parts(call.counts, size_of(call.dtype));
    auto* const output = static_cast<std::byte*>(call.output);
    return start(parts.total(), next_stream(), [&](PeerMessages& messages) {
      messages.copy(output + parts.offset(messages.rank()),
                    static_cast<const std::byte*>(call.input), parts.count(messages.rank()));
      return allgather_by(messages, output, parts, choose(Collective::Allgather, parts.total()));
    });
  }

  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    const Parts sent(call.send_counts, size_of(call.dtype));
    const Parts received(call.receive_counts, size_of(call.dtype));
    const auto* const input = static_cast<const std::byte*>(call.input);
    auto* const output = static_cast<std::byte*>(call.output);
    const std::size_t largest = call.largest_count * size_of(call.dtype);
    return start(received.total(), next_stream(), [&](PeerMessages& messages) {
      const Algorithm algorithm = choose(Collective::Alltoall, largest * channel_->peers.size());
      return algorithm == Algorithm::Bruck
                 ? bruck_alltoall(messages, input, output, sent, received, largest)
                 : pairwise_alltoall(messages, input, output, sent, received);
    });
  }

  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    const Parts parts(call.counts, size_of(call.dtype));
    return start(parts.total(), next_stream(), [&](PeerMessages& messages) {
      return reducescatter_by(
          messages, static_cast<const std::byte*>(call.input), static_cast<std::byte*>(call.output),
          parts, {.dtype = call.dtype, .op = call.op},
          choose(Collective::Reducescatter, parts.total(), needs_rank_order(call.dtype, call.op)));
    });
  }

  std::unique_ptr<Operation> send(const SendCall& call) override {
    const std::size_t bytes = call.count * size_of(call.dtype);
    return start(bytes, kMessageStream, [&](PeerMessages& messages) {
      return send_message(messages, static_cast<std::size_t>(call.peer),
                          static_cast<const std::byte*>(call.input), bytes);
    });
  }

  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    const std::size_t bytes = call.count * size_of(call.dtype);
    return start(bytes, kMessageStream, [&](PeerMessages& messages) {
      return receive_message(messages, static_cast<std::size_t>(call.peer),
                             static_cast<std::byte*>(call.output), bytes);
    });
  }

  /// Polls often soon after an operation, when bytes may wait for a full socket, and then rarely.
  std::optional<std::chrono::nanoseconds> tend() override {
    constexpr std::chrono::microseconds kSoon{100};
    constexpr std::chrono::milliseconds kLater{50};
    if (!owns_fabric_) return std::nullopt;
    const bool has_progress = channel_->fabric->progress();
    const std::uint64_t operations = operations_.get();
    const bool is_active =
        has_progress || operations != std::exchange(tended_operations_, operations);
    pause_ = is_active ? kSoon : std::min<std::chrono::nanoseconds>(pause_ + pause_ / 8, kLater);
    return pause_;
  }

  int prepare_sleep() override {
    Fabric& fabric = *channel_->fabric;
    return fabric.prepare_sleep() ? fabric.descriptor() : -1;
  }

  void abort() noexcept override { channel_->fabric->abort(); }
  bool keep(const std::shared_ptr<void>& memory) override { return channel_->fabric->keep(memory); }

  void close() override {
    if (owns_fabric_) channel_->fabric->close();
  }

  StatsGroup stats() const override {
    StatsGroup group = {
        options_.name,
        {{"operations", operations_.get()}, {"payload_bytes", payload_bytes_.get()}}};
    for (std::size_t kind = 0; kind < used_.size(); ++kind) {
      for (std::size_t algorithm = 0; algorithm < used_[kind].size(); ++algorithm) {
        const std::uint64_t count = used_[kind][algorithm].get();
        if (count == 0) continue;
        group.counters.emplace_back(std::string(to_string(static_cast<Collective>(kind))) + "_" +
                                        std::string(to_string(static_cast<Algorithm>(algorithm))),
                                    count);
      }
    }
    if (!owns_fabric_) return group;
    for (const auto& [name, value] : channel_->fabric->stats().counters) {
      group.counters.emplace_back("fabric_" + name, value);
    }
    return group;
  }

 private:
  /// Starts an operation and posts its first messages. Called in the order of operations.
  std::unique_ptr<Operation> start(std::uint64_t bytes, std::uint32_t stream,
                                   const auto& make_steps) {
    operations_.add();
    payload_bytes_.add(bytes);
    // Messages of a program are posted at once: both ranks have them at one place of their order.
    const bool waits = stream != kMessageStream;
    auto operation = std::make_unique<AlgorithmOperation>(
        channel_, stream, waits ? std::move(ended_[stream]) : nullptr);
    ended_[stream] = operation->ended();
    operation->start(make_steps(operation->messages()));
    return operation;
  }

  std::uint32_t next_stream() noexcept {
    return static_cast<std::uint32_t>(started_++ % kCollectiveStreams);
  }

  Algorithm choose(Collective collective, std::uint64_t bytes, bool in_rank_order = false) {
    std::optional<Algorithm> given;
    if (in_rank_order) {
      given = Algorithm::Pairwise;
    } else if (options_.in_turn) {
      given = options_.in_turn(collective, bytes);
    }
    const Algorithm algorithm =
        given ? *given : options_.algorithms.choose(collective, channel_->peers.size(), bytes);
    used_[static_cast<std::size_t>(collective)][static_cast<std::size_t>(algorithm)].add();
    return algorithm;
  }

  /// Returns whether the order of operands matters and must not depend on sizes.
  bool needs_rank_order(DataType dtype, ReduceOp op) const {
    return options_.exact && is_floating(dtype) && (op == ReduceOp::Sum || op == ReduceOp::Product);
  }

  const std::shared_ptr<const FabricChannel> channel_;  ///< operations may outlive the backend
  const FabricBackendOptions options_;
  const bool between_hosts_;
  const bool owns_fabric_;
  std::uint64_t started_ = 0;  ///< collectives
  /// Whether the last operation of each stream has ended.
  std::array<std::shared_ptr<const bool>, Fabric::kStreams> ended_;
  std::uint64_t tended_operations_ = 0;
  std::chrono::nanoseconds pause_{0};  ///< until the next tend()
  Counter operations_, payload_bytes_;
  std::array<std::array<Counter, kAlgorithmCount>, kCollectiveCount> used_;
};

}  // namespace

std::shared_ptr<Fabric> SharedFabric::get(BackendContext& context) {
  if (context.set == 0) {
    made_ = make_(context);
  } else if (!made_) {
    if (make_for_set_) return make_for_set_(context);
    throw UsageError(
        "the ranks of this process set are on several hosts, and the backend of all ranks uses no "
        "network: leave RONDE_CPU_BACKEND unset");
  }
  return made_;
}

std::unique_ptr<Backend> make_fabric_backend(std::shared_ptr<Fabric> fabric,
                                             const BackendContext& context,
                                             const FabricBackendOptions& options,
                                             bool owns_fabric) {
  const std::uint32_t sets = fabric->channels() - 2;  // beside all ranks, and shards
  if (context.set > sets) {
    throw UsageError("over " + std::string(fabric->name()) + " there can be " +
                     std::to_string(sets) +
                     " process sets, one after the other or at once; start with RONDE_CPU_BACKEND "
                     "unset where the ranks of a set share a host");
  }
  FabricChannel channel;
  channel.fabric = std::move(fabric);
  channel.peers = context.ranks;
  channel.rank = static_cast<std::size_t>(context.topology->rank);
  channel.number = context.set;
  return std::make_unique<FabricBackend>(std::move(channel), options, context.topology->hosts() > 1,
                                         owns_fabric);
}

BackendFactory fabric_backend_factory(std::shared_ptr<SharedFabric> fabric,
                                      const FabricBackendOptions& options) {
  // Above MPI's own collectives, below backends that use the memory of hosts as well.
  constexpr int kPriority = 12;
  BackendFactory factory;
  factory.device = DeviceKind::Cpu;
  factory.priority = kPriority;
  factory.serves_sets = true;
  factory.create = [fabric = std::move(fabric), options](BackendContext& context) {
    return make_fabric_backend(fabric->get(context), context, options, context.set == 0);
  };
  return factory;
}

}  // namespace ronde

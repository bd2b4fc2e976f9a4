// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/links.h"

#include <algorithm>
#include <utility>

#include "backends/device/abandon.h"

namespace ronde::nccl {
namespace {

using Clock = NonBlockingCommunicator::Clock;

/// Bytes of the fusion buffer: shares of all ranks, of wide accesses, in two halves.
std::size_t buffer_bytes(std::uint64_t wanted, std::size_t ranks) {
  constexpr std::uint64_t kDefault = std::uint64_t{64} << 20;  // fusion is off: chunks remain
  const std::size_t least = 2 * 16 * ranks;
  const auto bytes = static_cast<std::size_t>(wanted > 0 ? wanted : kDefault);
  return std::max(bytes / 16 * 16, least);
}

/// A blob from `from` to the other one of two ranks, by the backend of the host.
class HostMessage {
 public:
  HostMessage(Backend& host, int peer, bool sends, std::span<std::byte> blob) {
    operation_ =
        sends
            ? host.send(
                  {.input = blob.data(), .count = blob.size(), .dtype = DataType::U8, .peer = peer})
            : host.recv({.output = blob.data(),
                         .count = blob.size(),
                         .dtype = DataType::U8,
                         .peer = peer});
  }
  bool poll() { return operation_->poll(); }

 private:
  std::unique_ptr<Operation> operation_;
};

template <typename Value>
std::span<std::byte> bytes_of(Value& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

class Links::Streams final : public DeviceStreams {
 public:
  explicit Streams(std::shared_ptr<cuda::CudaStreams> own) : own_(std::move(own)) {}

  void add(std::shared_ptr<DeviceStreams> more) {
    const std::lock_guard lock(mutex_);
    more_ = std::move(more);
  }

  std::shared_ptr<const DeviceEvent> mark(int device, void* stream) override {
    return own_->mark(device, stream);
  }

  Rest settle(std::chrono::nanoseconds bound) noexcept override {
    const auto deadline = Clock::now() + bound;
    const Rest own = own_->settle(bound);
    const std::lock_guard lock(mutex_);
    const auto left = std::max<Clock::duration>(deadline - Clock::now(), Clock::duration::zero());
    return more_ ? std::max(own, more_->settle(left)) : own;
  }

  void end_waits() noexcept override {
    own_->end_waits();
    const std::lock_guard lock(mutex_);
    if (more_) more_->end_waits();
  }

 private:
  const std::shared_ptr<cuda::CudaStreams> own_;
  std::mutex mutex_;
  std::shared_ptr<DeviceStreams> more_;  ///< guarded by mutex_
};

Links::Links(Libraries libraries, const NcclOptions& options, const BackendContext& context)
    : libraries_(std::move(libraries)),
      options_(options),
      context_(context),
      size_(static_cast<std::size_t>(context.topology->size)),
      rank_(static_cast<std::size_t>(context.topology->rank)),
      streams_(std::make_shared<cuda::CudaStreams>(libraries_.driver)),
      all_streams_(std::make_shared<Streams>(streams_)),
      registrations_(options.registration_cache,
                     static_cast<std::size_t>(options.registration_cache_bytes)),
      lanes_(static_cast<std::size_t>(std::max<std::uint64_t>(options.streams, 1))) {
  context_.exchange = nullptr;  // of those who make backends, while they do
}

Links::~Links() {
  registrations_.clear();
  const bool is_settled = streams_->settle(options_.abort_bound) == Rest::Reached;
  for (Lane& lane : lanes_) {
    if (is_settled) continue;
    if (lane.fusion) lane.fusion->abandon();
    if (lane.bench) device::abandon(std::move(lane.bench));
  }
}

std::shared_ptr<DeviceStreams> Links::device_streams() const {
  return all_streams_;
}

cuda::Workbench& Links::bench(std::size_t index, int device) {
  Lane& lane = lanes_[index];
  if (!lane.bench) {
    lane.bench = std::make_unique<cuda::Workbench>(*streams_, device, options_.kernel_image,
                                                   buffer_bytes(options_.fusion_bytes, size_));
    lane.fusion =
        std::make_unique<FusionMemory>(options_.registration_cache ? &registrations_ : nullptr);
  }
  return *lane.bench;
}

Candidate Links::candidate(std::size_t rank, const Identity& identity) const {
  const int called = rank < context_.ranks.size() ? context_.ranks[rank] : static_cast<int>(rank);
  return {called, context_.topology->host_of.at(rank), identity};
}

bool Links::can_connect(const std::vector<Candidate>& candidates) {
  const std::string shared = shared_gpu(candidates);
  if (shared.empty()) {
    const std::string mixed = mixed_versions(candidates);
    if (!mixed.empty()) throw Error(mixed);
    return true;
  }
  if (!options_.fallback) throw Error(shared_gpu_error(shared));
  if (!fallback_) {
    std::unique_ptr<Backend> made = options_.fallback(context_);
    all_streams_->add(made->device_streams());
    context_.warn(shared + ", which NCCL cannot serve: the backend '" + std::string(made->name()) +
                  "' moves their tensors (RONDE_GPU_BACKEND)");
    const std::lock_guard lock(mutex_);
    fallback_ = std::move(made);
  }
  return false;
}

UniqueId Links::new_id(const cuda::DeviceContext& context) const {
  UniqueId id{};
  const cuda::Current current(context);
  const auto& function = libraries_.nccl->get_unique_id;
  if (const Result result = function(&id); result != kSuccess) {
    throw NcclError(*libraries_.nccl, function.symbol(), result, nullptr, "connecting the ranks");
  }
  return id;
}

std::shared_ptr<NonBlockingCommunicator> Links::begin_communicator(cuda::Workbench& bench,
                                                                   const UniqueId& id, int size,
                                                                   int rank) {
  const auto patience = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options_.init_timeout_s));
  const cuda::Current current(*bench.context());
  auto communicator = std::make_shared<NonBlockingCommunicator>(libraries_.nccl, id, size, rank,
                                                                Clock::now() + patience);
  ++counts_.communicators;
  return communicator;
}

bool Links::connect(int device) {
  if (is_connected_) return true;
  if (!is_connecting_) {
    is_connecting_ = true;
    // A rank that has joined does not know of a tensor.
    const int local = context_.topology->local_rank;
    const bool is_known = device != kNoDevice;
    connecting_ =
        connect_all(is_known ? device : streams_->own_device(local % streams_->device_count()));
  }
  if (!connecting_.poll()) return false;
  connecting_ = {};
  return is_connected_ = true;
}

/// One lane after the other: NCCL connects each over what the ones before have found out.
device::Steps Links::connect_all(int device) {
  const Identity own = identity_of(streams_->context(device)->gpu(), libraries_.nccl_version);
  device::HostExchange exchange(*context_.host, static_cast<int>(size_));
  exchange.start(own);
  co_await device::until([&] { return exchange.poll(); });
  std::vector<Candidate> candidates;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    candidates.push_back(candidate(rank, exchange.of<Identity>(rank)));
  }
  if (!can_connect(candidates)) {
    is_replaced_ = true;
    co_return;
  }
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    device::Steps connecting = connect_lane(lanes_[i], bench(i, device), exchange);
    co_await connecting;
  }
}

device::Steps Links::connect_lane(Lane& lane, cuda::Workbench& bench,
                                  device::HostExchange& exchange) {
  exchange.start(rank_ == 0 ? new_id(*bench.context()) : UniqueId{});
  co_await device::until([&] { return exchange.poll(); });
  const auto communicator = begin_communicator(bench, exchange.of<UniqueId>(0),
                                               static_cast<int>(size_), static_cast<int>(rank_));
  lane.channel = Channel(bench, communicator);
  co_await device::until([&] { return communicator->is_connected(); });
}

bool Links::connect_to(int peer, int device) {
  if (is_replaced_) return true;
  Pair& pair = pairs_[peer];
  if (pair.is_done) return true;
  if (!pair.has_begun) {
    pair.has_begun = true;
    pair.connecting = connect_pair(peer, device, pair);
  }
  if (!pair.connecting.poll()) return false;
  pair.connecting = {};
  return pair.is_done = true;
}

/// The lower rank speaks first, and is the first of the two in NCCL.
device::Steps Links::connect_pair(int peer, int device, Pair& pair) {
  const bool is_first = static_cast<int>(rank_) < peer;
  Identity own = identity_of(streams_->context(device)->gpu(), libraries_.nccl_version);
  Identity others{};
  for (int turn = 0; turn < 2; ++turn) {
    const bool sends = is_first == (turn == 0);
    HostMessage message(*context_.host, peer, sends, bytes_of(sends ? own : others));
    co_await device::until([&] { return message.poll(); });
  }
  const Candidate here = candidate(rank_, own);
  const Candidate there = candidate(static_cast<std::size_t>(peer), others);
  if (!can_connect(is_first ? std::vector{here, there} : std::vector{there, here})) {
    pair.by_fallback = true;
    co_return;
  }
  UniqueId id = is_first ? new_id(*streams_->context(device)) : UniqueId{};
  HostMessage message(*context_.host, peer, is_first, bytes_of(id));
  co_await device::until([&] { return message.poll(); });
  cuda::Workbench& bench = this->bench(0, device);
  pair.channel = Channel(bench, begin_communicator(bench, id, 2, is_first ? 0 : 1));
  co_await device::until([&] { return pair.channel.communicator()->is_connected(); });
}

Backend* Links::fallback_to(int peer) const {
  return is_replaced_ || pairs_.at(peer).by_fallback ? fallback_.get() : nullptr;
}

Lane& Links::next_lane() {
  return lanes_[turn_++ % lanes_.size()];
}

const Channel& Links::channel_to(int peer) const {
  return pairs_.at(peer).channel;
}

void Links::abort() noexcept {
  // What waits for the host's backend, which may be gone before this is.
  connecting_ = {};
  for (auto& [peer, pair] : pairs_) pair.connecting = {};
  const auto deadline = Clock::now() + options_.abort_bound;
  for_each_communicator([](NonBlockingCommunicator& each) { each.begin_abort(); });
  // One that does not return leaves work in its stream, which DeviceStreams::settle() tells.
  for_each_communicator(
      [&](NonBlockingCommunicator& each) { static_cast<void>(each.has_aborted(deadline)); });
  if (fallback_) fallback_->abort();
}

void Links::let_go() {
  if (fallback_) fallback_->let_go();
}

void Links::close() {
  connecting_ = {};
  for (Lane& lane : lanes_) {
    if (lane.fusion) lane.fusion->deregister();
  }
  registrations_.clear();
  const auto deadline = Clock::now() + options_.close_bound;
  for_each_communicator([&](NonBlockingCommunicator& each) { each.close(deadline); });
  if (fallback_) fallback_->close();
}

StatsGroup Links::stats() const {
  StatsGroup group{"nccl",
                   {{"collectives", counts_.collectives},
                    {"messages", counts_.messages},
                    {"bytes", counts_.bytes},
                    {"direct_chunks", counts_.direct_chunks},
                    {"packed_chunks", counts_.packed_chunks},
                    {"chunks_in_order", counts_.chunks_in_order},
                    {"communicators", counts_.communicators}}};
  const auto add = [&](const StatsGroup& more, const std::string& prefix) {
    for (const auto& [name, value] : more.counters) {
      group.counters.emplace_back(prefix + name, value);
    }
  };
  add(registrations_.stats(), "registration_");
  add(streams_->stats(), "");
  const std::lock_guard lock(mutex_);
  group.counters.emplace_back("fallback", fallback_ ? 1 : 0);
  if (fallback_) add(fallback_->stats(), "fallback_");
  return group;
}

}  // namespace ronde::nccl

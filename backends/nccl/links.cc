// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/links.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/poll_until.h"
#include "backends/cuda/verdict.h"
#include "backends/gpu/abandon.h"

namespace ronde::nccl {
namespace {

using Clock = std::chrono::steady_clock;

/// Bytes of the fusion buffer: shares of all ranks, of wide accesses, in two halves.
std::size_t buffer_bytes(std::uint64_t wanted, std::size_t ranks) {
  constexpr std::uint64_t kDefault = std::uint64_t{64} << 20;  // fusion is off: chunks remain
  const std::size_t least = 2 * 16 * ranks;
  const auto bytes = static_cast<std::size_t>(wanted > 0 ? wanted : kDefault);
  return std::max(bytes / 16 * 16, least);
}

/// A value from the lower rank to the higher one, or back, by the backend of the host.
template <typename Value>
std::unique_ptr<Operation> host_message(Backend& host, int peer, bool sends, Value& value) {
  constexpr DataType kBytes = DataType::U8;
  if (sends) {
    return host.send({.input = &value, .count = sizeof value, .dtype = kBytes, .peer = peer});
  }
  return host.recv({.output = &value, .count = sizeof value, .dtype = kBytes, .peer = peer});
}

std::string name_of(const Candidate& candidate) {
  return "rank " + std::to_string(candidate.rank);
}

/// As NCCL sees it, by host and PCI id. Hosts may bear names that make two of one machine: the UUID
/// tells.
bool share(const Candidate& a, const Candidate& b) {
  const bool has_same_place = a.host == b.host && a.identity.pci_id == b.identity.pci_id;
  return has_same_place || a.identity.uuid == b.identity.uuid;
}

}  // namespace

Identity identity_of(const cuda::Gpu& gpu, int nccl_version) {
  Identity identity{.nccl_version = nccl_version};
  cuda::set_text(identity.pci_id, gpu.pci_id);
  cuda::set_text(identity.uuid, gpu.uuid);
  return identity;
}

std::string shared_gpu(const std::vector<Candidate>& candidates) {
  for (auto one = candidates.begin(); one != candidates.end(); ++one) {
    const auto other = std::find_if(one + 1, candidates.end(),
                                    [&](const Candidate& each) { return share(*one, each); });
    if (other == candidates.end()) continue;
    return name_of(*one) + " and " + name_of(*other) + " are both on " + one->identity.uuid.data() +
           " (" + one->identity.pci_id.data() + ")";
  }
  return {};
}

std::string mixed_versions(const std::vector<Candidate>& candidates) {
  const Candidate& first = candidates.front();
  for (const Candidate& other : candidates) {
    if (other.identity.nccl_version == first.identity.nccl_version) continue;
    return name_of(first) + " has NCCL " + version_text(first.identity.nccl_version) + ", " +
           name_of(other) + " has " + version_text(other.identity.nccl_version) +
           ": they do not connect. Give all ranks the same one";
  }
  return {};
}

class Links::Streams final : public DeviceStreams {
 public:
  explicit Streams(std::shared_ptr<cuda::CudaStreams> own) : own_(std::move(own)) {}

  void add(std::shared_ptr<DeviceStreams> more) {
    const std::lock_guard lock(mutex_);
    more_ = std::move(more);
  }
  /// One that has not stopped in time, and may still queue work.
  void add(std::shared_ptr<IssuingThread> late) {
    const std::lock_guard lock(mutex_);
    late_.push_back(std::move(late));
  }

  std::shared_ptr<const DeviceEvent> mark(int device, void* stream) override {
    return own_->mark(device, stream);
  }

  Rest settle(std::chrono::nanoseconds bound) noexcept override {
    const auto deadline = Clock::now() + bound;
    const std::lock_guard lock(mutex_);
    for (const auto& thread : late_) {
      if (!thread->has_stopped(deadline)) return Rest::NotYet;
    }
    const auto left = [&] { return std::max(deadline - Clock::now(), Clock::duration::zero()); };
    const Rest own = own_->settle(left());
    return more_ ? std::max(own, more_->settle(left())) : own;
  }

  void end_waits() noexcept override {
    own_->end_waits();
    const std::lock_guard lock(mutex_);
    if (more_) more_->end_waits();
  }

 private:
  const std::shared_ptr<cuda::CudaStreams> own_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<DeviceStreams> more_;
  std::vector<std::shared_ptr<IssuingThread>> late_;
};

Links::Links(const Libraries& libraries, const NcclOptions& options, const BackendContext& context)
    : context_(context),
      shared_(new Shared{.libraries = libraries,
                         .options = options,
                         .size = static_cast<std::size_t>(context.topology->size),
                         .rank = static_cast<std::size_t>(context.topology->rank),
                         .streams = std::make_shared<cuda::CudaStreams>(libraries.driver)}),
      streams_(std::make_shared<Streams>(shared_->streams)) {
  context_.exchange = nullptr;  // of those who make backends, while they do
}

Links::~Links() {
  end_lanes();
  const auto bound = hangs_ ? std::chrono::milliseconds{0} : options().abort_bound;
  if (streams_->settle(bound) == Rest::Reached && !hangs_) return;
  for (auto& lane : lanes()) {
    if (!lane->bench) continue;
    lane->channel.thread.reset();  // which is left to itself, and not kept
    gpu::abandon(std::make_unique<std::shared_ptr<Lane>>(std::move(lane)));
  }
}

std::shared_ptr<DeviceStreams> Links::device_streams() const {
  return streams_;
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
  if (!options().fallback) {
    throw Error(shared +
                ", but NCCL needs a GPU for each rank. Set RONDE_GPU_BACKEND=mpi, by which ranks "
                "share one, or give each rank its own by CUDA_VISIBLE_DEVICES");
  }
  if (!fallback_) {
    std::unique_ptr<Backend> made = options().fallback(context_);
    streams_->add(made->device_streams());
    context_.warn(shared + ", which NCCL cannot serve: the backend '" + std::string(made->name()) +
                  "' moves their tensors (RONDE_GPU_BACKEND)");
    const std::lock_guard lock(mutex_);
    fallback_ = std::move(made);
  }
  return false;
}

UniqueId Links::new_id(int device) const {
  UniqueId id{};
  const NcclApi& api = *shared_->libraries.nccl;
  const cuda::Current current(*shared_->streams->context(device));
  if (const Result result = api.get_unique_id(&id); result != kSuccess) {
    throw NcclError(api, api.get_unique_id.symbol(), result, nullptr, "connecting the ranks");
  }
  return id;
}

bool Links::is_replaced() const {
  const auto all = connections_.find(kAllRanks);
  return all != connections_.end() && all->second.by_fallback;
}

bool Links::connect(int peer, int device) {
  if (is_replaced()) return true;
  Connection& connection = connections_[peer];
  if (connection.is_done) return true;
  if (!connection.has_begun) {
    connection.has_begun = true;
    // A rank that has joined does not know of a tensor.
    if (device == kNoDevice) device = shared_->streams->own_device(context_.topology->local_rank);
    connection.connecting = peer == kAllRanks ? connect_all(device, connection)
                                              : connect_pair(peer, device, connection);
  }
  if (!connection.connecting.poll()) return false;
  connection.connecting = {};
  return connection.is_done = true;
}

/// One lane after the other: NCCL connects each over what the ones before have found out.
Steps Links::connect_all(int device, Connection& all) {
  const Identity own =
      identity_of(shared_->streams->context(device)->gpu(), shared_->libraries.nccl_version);
  gpu::HostExchange exchange(*context_.host, static_cast<int>(shared_->size));
  exchange.start(own);
  co_await until([&] { return exchange.poll(); });
  std::vector<Candidate> candidates;
  for (std::size_t rank = 0; rank < shared_->size; ++rank) {
    candidates.push_back(candidate(rank, exchange.of<Identity>(rank)));
  }
  if (!can_connect(candidates)) {
    all.by_fallback = true;
    co_return;
  }
  const auto thread = std::make_shared<IssuingThread>();
  const std::size_t count = std::max<std::size_t>(options().streams, 1);
  while (all.lanes.size() < count) {
    exchange.start(own_rank() == 0 ? new_id(device) : UniqueId{});
    co_await until([&] { return exchange.poll(); });
    const std::shared_ptr<Lane> lane = all.lanes.emplace_back(make_lane(device, thread));
    Steps connecting = connect_lane(lane, exchange.of<UniqueId>(0), own_rank(), shared_->size);
    co_await connecting;
  }
}

std::shared_ptr<Lane> Links::make_lane(int device,
                                       const std::shared_ptr<IssuingThread>& thread) const {
  auto lane = std::make_shared<Lane>();
  lane->bench =
      std::make_shared<cuda::Workbench>(*shared_->streams, device, options().kernel_image,
                                        buffer_bytes(options().fusion_bytes, shared_->size));
  lane->channel = {thread, std::shared_ptr<cuda::Stream>(lane->bench, &lane->bench->stream()),
                   std::make_shared<BlockingCommunicator>(shared_->libraries.nccl,
                                                          static_cast<int>(shared_->size))};
  return lane;
}

Steps Links::connect_lane(std::shared_ptr<Lane> lane, UniqueId id, int rank, std::size_t ranks) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(options().init_timeout_s));
  ++counts().communicators;
  const auto task = lane->channel.thread->submit(
      IssuingThread::Kind::Connect, [lane, id, rank, registers = options().registration_cache] {
        const cuda::Current current(lane->channel.stream->context());
        const BlockingCommunicator& communicator = *lane->channel.communicator;
        lane->channel.communicator->connect(id, rank);
        if (!lane->bench || !registers) return;
        lane->fusion_memory = std::make_unique<FusionMemory>(communicator, lane->bench->context(),
                                                             lane->bench->fusion_bytes());
        lane->fusion_memory->enter(communicator);
      });
  co_await until([&] {
    if (task->poll()) return true;
    if (Clock::now() < deadline) return false;
    const std::string all = std::to_string(ranks) + " ranks";
    throw Error("NCCL failed while connecting " + all + ": not all of the " + all +
                " have come in time");
  });
}

/// The lower rank speaks first, and is the first of the two in NCCL.
Steps Links::connect_pair(int peer, int device, Connection& pair) {
  const bool is_first = own_rank() < peer;
  Identity own =
      identity_of(shared_->streams->context(device)->gpu(), shared_->libraries.nccl_version);
  Identity others{};
  for (const bool sends : {is_first, !is_first}) {
    const auto message = host_message(*context_.host, peer, sends, sends ? own : others);
    co_await until_finished(*message);
  }
  const Candidate here = candidate(shared_->rank, own);
  const Candidate there = candidate(static_cast<std::size_t>(peer), others);
  if (!can_connect(is_first ? std::vector{here, there} : std::vector{there, here})) {
    pair.by_fallback = true;
    co_return;
  }
  UniqueId id = is_first ? new_id(device) : UniqueId{};
  const auto message = host_message(*context_.host, peer, is_first, id);
  co_await until_finished(*message);
  const auto lane = pair.lanes.emplace_back(std::make_shared<Lane>());
  lane->channel = {std::make_shared<IssuingThread>(), shared_->streams->make_stream(device),
                   std::make_shared<BlockingCommunicator>(shared_->libraries.nccl, 2)};
  Steps connecting = connect_lane(lane, id, is_first ? 0 : 1, 2);
  co_await connecting;
}

Backend* Links::fallback(int peer) const {
  return is_replaced() || connections_.at(peer).by_fallback ? fallback_.get() : nullptr;
}

std::shared_ptr<Lane> Links::next_lane(int peer) {
  Connection& connection = connections_.at(peer);
  return connection.lanes[connection.turn++ % connection.lanes.size()];
}

std::vector<std::shared_ptr<Lane>> Links::lanes() const {
  std::vector<std::shared_ptr<Lane>> all;
  for (const auto& [peer, connection] : connections_) {
    all.insert(all.end(), connection.lanes.begin(), connection.lanes.end());
  }
  return all;
}

/// What waits for the host's backend, which may be gone before this is.
void Links::end_connecting() noexcept {
  for (auto& [peer, connection] : connections_) connection.connecting = {};
}

/// Within the bound of an abort, once. A thread that does not come back is left to itself, as is an
/// abort that does not return. DeviceStreams::settle() tells what they leave in streams.
void Links::end_lanes() noexcept {
  const auto deadline = hangs_ ? Clock::now() : Clock::now() + options().abort_bound;
  const auto all = lanes();
  for (const auto& lane : all) lane->channel.thread->stop();
  for (const auto& lane : all) lane->channel.communicator->begin_abort();
  for (const auto& lane : all) {
    if (!lane->channel.communicator->has_aborted(deadline)) hangs_ = true;
    if (lane->channel.thread->has_stopped(deadline)) continue;
    hangs_ = true;
    streams_->add(lane->channel.thread);
  }
}

void Links::abort() noexcept {
  end_connecting();
  end_lanes();
  if (fallback_) fallback_->abort();
}

void Links::let_go() {
  if (fallback_) fallback_->let_go();
}

/// All at once, as pairs may wait for each other.
void Links::close() {
  end_connecting();
  std::vector<std::shared_ptr<Task>> tasks;
  for (const auto& lane : lanes()) {
    tasks.push_back(lane->channel.thread->submit(IssuingThread::Kind::Work, [lane] {
      if (lane->fusion_memory) lane->fusion_memory->leave(*lane->channel.communicator);
      lane->channel.close();
    }));
  }
  const auto deadline = Clock::now() + options().close_bound;
  for (const auto& task : tasks) {
    if (cuda::poll_until(deadline, [&] { return task->poll(); })) continue;
    throw Error(
        "NCCL failed while closing a communicator: what is in progress has not ended in time, or "
        "not all ranks close theirs");
  }
  if (fallback_) fallback_->close();
}

StatsGroup Links::stats() const {
  const Counts& counts = shared_->counts;
  StatsGroup group{"nccl",
                   {{"collectives", counts.collectives},
                    {"messages", counts.messages},
                    {"bytes", counts.bytes},
                    {"direct_chunks", counts.direct_chunks},
                    {"packed_chunks", counts.packed_chunks},
                    {"chunks_in_order", counts.chunks_in_order},
                    {"communicators", counts.communicators},
                    {"handles_lost", shared_->streams->lost()}}};
  const std::lock_guard lock(mutex_);
  group.counters.emplace_back("fallback", fallback_ ? 1 : 0);
  if (!fallback_) return group;
  for (const auto& [name, value] : fallback_->stats().counters) {
    group.counters.emplace_back("fallback_" + name, value);
  }
  return group;
}

}  // namespace ronde::nccl

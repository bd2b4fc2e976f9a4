// SPDX-License-Identifier: Apache-2.0
// Connecting: the ranks exchange GPUs and versions, so that a shared GPU or a mix is found before
// NCCL is called; rank 0 of a channel makes NCCL's id, and each rank's thread connects with it,
// which blocks until all have come. After a failure all communicators are aborted within one bound
// of time.
#include "backends/nccl/communicators.h"

#include <algorithm>
#include <utility>

#include "backends/gpu/base/abandon.h"
#include "backends/gpu/base/peer_status.h"
#include "backends/gpu/base/poll_until.h"

namespace ronde::nccl {
namespace {

using Clock = std::chrono::steady_clock;

/// Bytes of the fusion buffer: two halves with an aligned share of each rank.
std::size_t buffer_bytes(std::uint64_t wanted, std::size_t ranks) {
  constexpr std::uint64_t kDefault = std::uint64_t{64} << 20;  // without fusion
  const std::size_t least = 2 * 16 * ranks;
  const auto bytes = static_cast<std::size_t>(wanted > 0 ? wanted : kDefault);
  return std::max(bytes / 16 * 16, least);
}

/// Sends or receives a value by the CPU's backend.
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

/// NCCL compares hosts and PCI ids. The UUID finds a shared GPU also if a machine counts as two
/// hosts.
bool share(const Candidate& a, const Candidate& b) {
  return a.uuid == b.uuid || (a.host == b.host && a.pci_id == b.pci_id);
}

}  // namespace

Candidate candidate_of(int rank, int host, const cuda::Gpu& gpu, int nccl_version) {
  Candidate candidate{.rank = rank, .host = host, .nccl_version = nccl_version};
  cuda::set_text(candidate.pci_id, gpu.pci_id);
  cuda::set_text(candidate.uuid, gpu.uuid);
  return candidate;
}

std::string shared_gpu(const std::vector<Candidate>& candidates) {
  for (auto one = candidates.begin(); one != candidates.end(); ++one) {
    const auto other = std::find_if(one + 1, candidates.end(),
                                    [&](const Candidate& each) { return share(*one, each); });
    if (other == candidates.end()) continue;
    return name_of(*one) + " and " + name_of(*other) + " are both on " + one->uuid.data() + " (" +
           one->pci_id.data() + ")";
  }
  return {};
}

std::string mixed_versions(const std::vector<Candidate>& candidates) {
  const Candidate& first = candidates.front();
  for (const Candidate& other : candidates) {
    if (other.nccl_version == first.nccl_version) continue;
    return name_of(first) + " has NCCL " + version_text(first.nccl_version) + ", " +
           name_of(other) + " has " + version_text(other.nccl_version) +
           ": they do not connect. Give all ranks the same one";
  }
  return {};
}

class Communicators::Streams final : public DeviceStreams {
 public:
  explicit Streams(std::shared_ptr<cuda::CudaStreams> own) : own_(std::move(own)) {}

  void add(std::shared_ptr<DeviceStreams> more) {
    const std::lock_guard lock(mutex_);
    more_ = std::move(more);
  }
  /// Adds a thread that has not stopped in time, and may still queue work.
  void add(std::shared_ptr<IssuingThread> late) {
    const std::lock_guard lock(mutex_);
    late_.push_back(std::move(late));
  }

  std::shared_ptr<const DeviceEvent> mark(int device, void* stream) override {
    return own_->mark(device, stream);
  }
  std::shared_ptr<const DeviceEvent> copy(int device, void* to, const void* from,
                                          std::size_t bytes) override {
    return own_->copy(device, to, from, bytes);
  }

  DrainStatus drain(std::chrono::nanoseconds bound) noexcept override {
    const auto deadline = Clock::now() + bound;
    const std::lock_guard lock(mutex_);
    for (const auto& thread : late_) {
      if (!thread->has_stopped(deadline)) return DrainStatus::NotYet;
    }
    const auto left = [&] { return std::max(deadline - Clock::now(), Clock::duration::zero()); };
    const DrainStatus own = own_->drain(left());
    return more_ ? std::max(own, more_->drain(left())) : own;
  }

  void cancel_waits() noexcept override {
    own_->cancel_waits();
    const std::lock_guard lock(mutex_);
    if (more_) more_->cancel_waits();
  }

 private:
  const std::shared_ptr<cuda::CudaStreams> own_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<DeviceStreams> more_;
  std::vector<std::shared_ptr<IssuingThread>> late_;
};

Communicators::Communicators(const Libraries& libraries, const NcclOptions& options,
                             const BackendContext& context)
    : context_(context),
      shared_(new Shared{
          .libraries = libraries,
          .options = options,
          .size = static_cast<std::size_t>(context.topology->size),
          .rank = static_cast<std::size_t>(context.topology->rank),
          .streams = std::make_shared<cuda::CudaStreams>(libraries.driver, options.on_gpu)}),
      streams_(std::make_shared<Streams>(shared_->streams)) {
  context_.exchange = nullptr;  // valid only while backends are made
}

Communicators::~Communicators() {
  end_channels();
  const auto bound = hangs_ ? std::chrono::milliseconds{0} : options().abort_bound;
  if (streams_->drain(bound) == DrainStatus::Reached && !hangs_) return;
  for (auto& channel : channels()) {
    if (!channel->resources) continue;
    channel->thread.reset();  // detaches it
    gpu::abandon(std::make_unique<std::shared_ptr<StreamChannel>>(std::move(channel)));
  }
}

std::shared_ptr<DeviceStreams> Communicators::device_streams() const {
  return streams_;
}

Candidate Communicators::own_candidate(int device) const {
  const std::size_t rank = shared_->rank;
  const int called = rank < context_.ranks.size() ? context_.ranks[rank] : own_rank();
  return candidate_of(called, context_.topology->host_of.at(rank),
                      shared_->streams->context(device)->gpu(), shared_->libraries.nccl_version);
}

bool Communicators::can_connect(const std::vector<Candidate>& candidates) {
  const std::string shared = shared_gpu(candidates);
  if (shared.empty()) {
    const std::string mixed = mixed_versions(candidates);
    if (!mixed.empty()) throw Error(mixed);
    return true;
  }
  if (!options().fallback) {
    throw Error(shared +
                ", but NCCL needs a GPU for each rank. Set RONDE_GPU_BACKEND=cuda, by which ranks "
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

UniqueId Communicators::new_id(int device) const {
  UniqueId id{};
  const NcclApi& api = *shared_->libraries.nccl;
  const cuda::Current current(*shared_->streams->context(device));
  if (const Result result = api.get_unique_id(&id); result != kSuccess) {
    throw NcclError(api, api.get_unique_id.symbol(), result, nullptr, "connecting the ranks");
  }
  return id;
}

bool Communicators::is_replaced() const {
  const auto all = connections_.find(kAllRanks);
  return all != connections_.end() && all->second.by_fallback;
}

bool Communicators::connect(int peer, int device) {
  if (is_replaced()) return true;
  Connection& connection = connections_[peer];
  if (connection.is_done) return true;
  if (!connection.has_begun) {
    connection.has_begun = true;
    // A rank that has joined has no tensor.
    if (device == kNoDevice) device = shared_->streams->own_device(context_.topology->local_rank);
    connection.connecting = peer == kAllRanks ? connect_all(device, connection)
                                              : connect_pair(peer, device, connection);
  }
  if (!connection.connecting.poll()) return false;
  connection.connecting = {};
  return connection.is_done = true;
}

/// Connects one channel after the other: NCCL reuses what it has found for the ones before.
Steps Communicators::connect_all(int device, Connection& all) {
  gpu::HostExchange exchange(*context_.host, static_cast<int>(shared_->size));
  co_await exchange.share(own_candidate(device));
  if (!can_connect(exchange.all<Candidate>())) {
    all.by_fallback = true;
    co_return;
  }
  const auto thread = std::make_shared<IssuingThread>();
  const std::size_t count = std::max<std::size_t>(options().streams, 1);
  while (all.channels.size() < count) {
    co_await exchange.share(own_rank() == 0 ? new_id(device) : UniqueId{});
    const std::shared_ptr<StreamChannel> channel =
        all.channels.emplace_back(make_channel(device, thread));
    Steps connecting =
        connect_channel(channel, exchange.of<UniqueId>(0), own_rank(), shared_->size);
    co_await connecting;
  }
}

std::shared_ptr<StreamChannel> Communicators::make_channel(
    int device, const std::shared_ptr<IssuingThread>& thread) const {
  const auto resources =
      std::make_shared<cuda::GpuResources>(*shared_->streams, device, options().kernel_image,
                                           buffer_bytes(options().fusion_bytes, shared_->size));
  return std::make_shared<StreamChannel>(
      resources, thread, std::shared_ptr<cuda::Stream>(resources, &resources->stream()),
      std::make_shared<BlockingCommunicator>(shared_->libraries.nccl,
                                             static_cast<int>(shared_->size)));
}

Steps Communicators::connect_channel(std::shared_ptr<StreamChannel> channel, UniqueId id, int rank,
                                     std::size_t ranks) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(options().init_timeout_s));
  ++counts().communicators;
  const auto task = channel->thread->submit(
      IssuingThread::Kind::Connect, [channel, id, rank, registers = options().registration_cache] {
        const cuda::Current current(channel->stream->context());
        BlockingCommunicator& communicator = *channel->communicator;
        communicator.connect(id, rank);
        if (!channel->resources || !registers) return;
        channel->fusion_memory = std::make_unique<FusionMemory>(
            communicator, channel->resources->context(), channel->resources->fusion_bytes());
        channel->fusion_memory->enter(communicator);
      });
  co_await until([&] {
    if (task->poll()) return true;
    if (Clock::now() < deadline) return false;
    const std::string all = std::to_string(ranks) + " ranks";
    throw Error("NCCL failed while connecting " + all + ": not all of the " + all +
                " have come in time");
  });
}

/// The lower rank sends first, and is rank 0 of the two in NCCL.
Steps Communicators::connect_pair(int peer, int device, Connection& pair) {
  const bool is_first = own_rank() < peer;
  Candidate here = own_candidate(device);
  Candidate there{};
  for (const bool sends : {is_first, !is_first}) {
    const auto message = host_message(*context_.host, peer, sends, sends ? here : there);
    co_await until_finished(*message);
  }
  if (!can_connect(is_first ? std::vector{here, there} : std::vector{there, here})) {
    pair.by_fallback = true;
    co_return;
  }
  UniqueId id = is_first ? new_id(device) : UniqueId{};
  const auto message = host_message(*context_.host, peer, is_first, id);
  co_await until_finished(*message);
  const auto channel = pair.channels.emplace_back(std::make_shared<StreamChannel>(
      nullptr, std::make_shared<IssuingThread>(), shared_->streams->make_stream(device),
      std::make_shared<BlockingCommunicator>(shared_->libraries.nccl, 2)));
  Steps connecting = connect_channel(channel, id, is_first ? 0 : 1, 2);
  co_await connecting;
}

Backend* Communicators::fallback(int peer) const {
  return is_replaced() || connections_.at(peer).by_fallback ? fallback_.get() : nullptr;
}

std::shared_ptr<StreamChannel> Communicators::next_channel(int peer) {
  Connection& connection = connections_.at(peer);
  return connection.channels[connection.turn++ % connection.channels.size()];
}

std::vector<std::shared_ptr<StreamChannel>> Communicators::channels() const {
  std::vector<std::shared_ptr<StreamChannel>> all;
  for (const auto& [peer, connection] : connections_) {
    all.insert(all.end(), connection.channels.begin(), connection.channels.end());
  }
  return all;
}

/// Cancels waits for the host's backend, which may be destroyed before this.
void Communicators::end_connecting() noexcept {
  for (auto& [peer, connection] : connections_) connection.connecting = {};
}

/// Aborts all channels within the bound of an abort; a second call does not wait again. Threads and
/// aborts that do not return are left alone; DeviceStreams::drain() reports their work.
void Communicators::end_channels() noexcept {
  const auto deadline = hangs_ ? Clock::now() : Clock::now() + options().abort_bound;
  const auto all = channels();
  for (const auto& channel : all) channel->thread->stop();
  for (const auto& channel : all) channel->communicator->begin_abort();
  for (const auto& channel : all) {
    if (!channel->communicator->has_aborted(deadline)) hangs_ = true;
    if (channel->thread->has_stopped(deadline)) continue;
    hangs_ = true;
    streams_->add(channel->thread);
  }
}

void Communicators::abort() noexcept {
  end_connecting();
  end_channels();
  if (fallback_) fallback_->abort();
}

void Communicators::release_peer_memory() {
  if (fallback_) fallback_->release_peer_memory();
}

/// Closes all channels at the same time, as pairs may wait for each other.
void Communicators::close() {
  end_connecting();
  std::vector<std::shared_ptr<Task>> tasks;
  for (const auto& channel : channels()) {
    tasks.push_back(channel->thread->submit(IssuingThread::Kind::Work, [channel] {
      if (channel->fusion_memory) channel->fusion_memory->leave(*channel->communicator);
      const cuda::Current current(channel->stream->context());
      channel->communicator->close();
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

StatsGroup Communicators::stats() const {
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

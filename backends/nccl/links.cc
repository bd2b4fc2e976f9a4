// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/links.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/poll_until.h"
#include "backends/cuda/verdict.h"
#include "backends/device/abandon.h"

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
  end_channels();
  const auto bound = hangs_ ? std::chrono::milliseconds{0} : options().abort_bound;
  if (streams_->settle(bound) == Rest::Reached && !hangs_) return;
  for (auto& lane : lanes_) {
    lane->channel.thread.reset();  // which is left to itself, and not kept
    device::abandon(std::make_unique<std::shared_ptr<Lane>>(std::move(lane)));
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

bool Links::connect(int device) {
  if (is_connected_) return true;
  if (!is_connecting_) {
    is_connecting_ = true;
    // A rank that has joined does not know of a tensor.
    if (device == kNoDevice) device = shared_->streams->own_device(context_.topology->local_rank);
    connecting_ = connect_all(device);
  }
  if (!connecting_.poll()) return false;
  connecting_ = {};
  return is_connected_ = true;
}

/// One lane after the other: NCCL connects each over what the ones before have found out.
device::Steps Links::connect_all(int device) {
  const Identity own =
      identity_of(shared_->streams->context(device)->gpu(), shared_->libraries.nccl_version);
  device::HostExchange exchange(*context_.host, static_cast<int>(shared_->size));
  exchange.start(own);
  co_await device::until([&] { return exchange.poll(); });
  std::vector<Candidate> candidates;
  for (std::size_t rank = 0; rank < shared_->size; ++rank) {
    candidates.push_back(candidate(rank, exchange.of<Identity>(rank)));
  }
  if (!can_connect(candidates)) {
    is_replaced_ = true;
    co_return;
  }
  const auto thread = std::make_shared<IssuingThread>();
  const std::size_t count = std::max<std::size_t>(options().streams, 1);
  while (lanes_.size() < count) {
    exchange.start(own_rank() == 0 ? new_id(device) : UniqueId{});
    co_await device::until([&] { return exchange.poll(); });
    const std::shared_ptr<Lane> lane = lanes_.emplace_back(make_lane(device, thread));
    device::Steps connecting =
        connect_channel(lane->channel, exchange.of<UniqueId>(0), own_rank(), lane);
    co_await connecting;
  }
}

std::shared_ptr<Lane> Links::make_lane(int device, const std::shared_ptr<IssuingThread>& thread) {
  auto lane = std::make_shared<Lane>();
  lane->bench =
      std::make_shared<cuda::Workbench>(*shared_->streams, device, options().kernel_image,
                                        buffer_bytes(options().fusion_bytes, shared_->size));
  lane->channel = {thread, std::shared_ptr<cuda::Stream>(lane->bench, &lane->bench->stream()),
                   std::make_shared<BlockingCommunicator>(shared_->libraries.nccl,
                                                          static_cast<int>(shared_->size))};
  return lane;
}

/// `lane`: whose channel it is; null: that of a pair.
device::Steps Links::connect_channel(const Channel& channel, UniqueId id, int rank,
                                     std::shared_ptr<Lane> lane) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(options().init_timeout_s));
  ++counts().communicators;
  const auto task = channel.thread->submit(
      IssuingThread::Kind::Connect,
      [channel, id, rank, lane, registers = options().registration_cache] {
        const cuda::Current current(channel.stream->context());
        channel.communicator->connect(id, rank);
        if (!lane || !registers) return;
        lane->fusion_memory = std::make_unique<FusionMemory>(
            *channel.communicator, lane->bench->context(), lane->bench->fusion_bytes());
        lane->fusion_memory->enter(*channel.communicator);
      });
  co_await device::until([&] {
    if (task->poll()) return true;
    if (Clock::now() < deadline) return false;
    const std::string ranks = std::to_string(lane ? shared_->size : 2) + " ranks";
    throw Error("NCCL failed while connecting " + ranks + ": not all of the " + ranks +
                " have come in time");
  });
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
  const bool is_first = own_rank() < peer;
  Identity own =
      identity_of(shared_->streams->context(device)->gpu(), shared_->libraries.nccl_version);
  Identity others{};
  for (const bool sends : {is_first, !is_first}) {
    const auto message = host_message(*context_.host, peer, sends, sends ? own : others);
    co_await device::until_finished(*message);
  }
  const Candidate here = candidate(shared_->rank, own);
  const Candidate there = candidate(static_cast<std::size_t>(peer), others);
  if (!can_connect(is_first ? std::vector{here, there} : std::vector{there, here})) {
    pair.by_fallback = true;
    co_return;
  }
  UniqueId id = is_first ? new_id(device) : UniqueId{};
  const auto message = host_message(*context_.host, peer, is_first, id);
  co_await device::until_finished(*message);
  pair.channel = {std::make_shared<IssuingThread>(), shared_->streams->make_stream(device),
                  std::make_shared<BlockingCommunicator>(shared_->libraries.nccl, 2)};
  device::Steps connecting = connect_channel(pair.channel, id, is_first ? 0 : 1, nullptr);
  co_await connecting;
}

Backend* Links::fallback_to(int peer) const {
  return is_replaced_ || pairs_.at(peer).by_fallback ? fallback_.get() : nullptr;
}

const std::shared_ptr<Lane>& Links::next_lane() {
  return lanes_[turn_++ % lanes_.size()];
}

std::vector<Channel> Links::channels() const {
  std::vector<Channel> all;
  for (const auto& lane : lanes_) all.push_back(lane->channel);
  for (const auto& [peer, pair] : pairs_) {
    if (pair.channel.communicator) all.push_back(pair.channel);
  }
  return all;
}

/// Within the bound of an abort, once. A thread that does not come back is left to itself, as is an
/// abort that does not return. DeviceStreams::settle() tells what they leave in streams.
void Links::end_channels() noexcept {
  const auto deadline = hangs_ ? Clock::now() : Clock::now() + options().abort_bound;
  const std::vector<Channel> all = channels();
  for (const Channel& each : all) each.thread->stop();
  for (const Channel& each : all) each.communicator->begin_abort();
  for (const Channel& each : all) {
    if (!each.communicator->has_aborted(deadline)) hangs_ = true;
    if (each.thread->has_stopped(deadline)) continue;
    hangs_ = true;
    streams_->add(each.thread);
  }
}

void Links::abort() noexcept {
  // What waits for the host's backend, which may be gone before this is.
  connecting_ = {};
  for (auto& [peer, pair] : pairs_) pair.connecting = {};
  end_channels();
  if (fallback_) fallback_->abort();
}

void Links::let_go() {
  if (fallback_) fallback_->let_go();
}

/// All at once, as pairs may wait for each other.
void Links::close() {
  connecting_ = {};
  for (auto& [peer, pair] : pairs_) pair.connecting = {};
  std::vector<std::shared_ptr<Task>> tasks;
  for (const auto& lane : lanes_) {
    tasks.push_back(lane->channel.thread->submit(IssuingThread::Kind::Work, [lane] {
      if (lane->fusion_memory) lane->fusion_memory->leave(*lane->channel.communicator);
      lane->channel.close();
    }));
  }
  for (const auto& [peer, pair] : pairs_) {
    if (!pair.channel.communicator) continue;
    tasks.push_back(pair.channel.thread->submit(IssuingThread::Kind::Work,
                                                [channel = pair.channel] { channel.close(); }));
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

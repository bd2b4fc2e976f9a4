// SPDX-License-Identifier: Apache-2.0
// How ranks find out whether CUDA IPC works: each exports its fusion buffer and writes a pattern
// there; they exchange handles, map each other's buffers, synchronise once as operations will, and
// compare the patterns that they read. After each step all agree to go on, or to stage instead.
#include "backends/cuda/ipc/ipc_peers.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "ronde/error.h"

namespace ronde::cuda {
namespace {

/// Bytes that peers read in the trial.
constexpr std::size_t kLook = 16;

/// The value that a rank writes for its peers.
unsigned char sight_of(std::size_t rank) {
  return static_cast<unsigned char>(rank + 1);
}

/// Bytes of a flag. A rank's flags lie in the order of the ranks that write them.
constexpr std::size_t kFlag = sizeof(std::uint32_t);
/// Further ahead than any rank gets, but not so far that it counts as behind.
constexpr std::uint32_t kFarAhead = std::uint32_t{1} << 30;

}  // namespace

PeerSignals::PeerSignals(const std::shared_ptr<const DeviceContext>& context,
                         shm::SharedMemory memory, std::size_t size, std::size_t own)
    : memory_(std::move(memory)),
      own_flags_(reinterpret_cast<std::uint32_t*>(memory_.bytes().data() + own * kFlagBytes),
                 size) {
  const auto bytes = memory_.bytes();
  const std::string doing = "pinning " + std::to_string(bytes.size()) + " bytes of shared memory";
  void* const begin = bytes.data();
  context->call(doing, &DriverApi::host_register, begin, bytes.size(),
                kHostRegisterPortable | kHostRegisterMapped);
  pinned_ = {context, begin};
  DevicePointer on_gpu = 0;
  context->call(doing, &DriverApi::host_device_pointer, &on_gpu, begin, 0U);
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (rank == own) continue;
    awaited_.push_back(on_gpu + own * kFlagBytes + rank * kFlag);
    written_.push_back(on_gpu + rank * kFlagBytes + own * kFlag);
  }
}

void PeerSignals::record(Stream& stream) {
  stream.write(written_, ++recorded_);
}

void PeerSignals::wait_for_all(Stream& stream) {
  if (!is_released_) stream.wait_for(awaited_, recorded_);
}

void PeerSignals::release() noexcept {
  is_released_ = true;
  for (std::uint32_t& flag : own_flags_) {
    std::atomic_ref(flag).store(recorded_ + kFarAhead, std::memory_order_release);
  }
}

IpcPeers::IpcPeers(GpuResources& resources, std::vector<int> ranks, std::size_t own)
    : resources_(resources), ranks_(std::move(ranks)), own_(own), peers_(size()) {}

Steps IpcPeers::connect(gpu::HostExchange& exchange, const std::vector<std::string>& visible,
                        std::chrono::milliseconds patience, std::string& problem) {
  if (size() == 1) {
    peers_[0].address = resources_.fusion();
    co_return;
  }
  Greeting greeting;
  problem = gpu::problem_of([&] { greet(greeting); });
  co_await gpu::agree(exchange, ranks_, problem);
  if (problem.empty()) {
    co_await exchange.share(greeting);
    problem = gpu::problem_of([&] { open(exchange.all<Greeting>(), visible); });
    co_await gpu::agree(exchange, ranks_, problem);
  }
  if (problem.empty()) {
    problem = gpu::problem_of([&] { look_at_peers(); });
    const Event over(resources_.context());
    resources_.stream().record(over);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    co_await until([&] { return over.is_done() || std::chrono::steady_clock::now() >= deadline; });
    if (!over.is_done()) {
      problem = "the memory of other ranks does not answer";
      release();
      co_await until([&] { return over.is_done(); });
    }
    if (problem.empty()) problem = gpu::problem_of([&] { check_sight(); });
    co_await gpu::agree(exchange, ranks_, problem);
  }
  sight_ = {};
  offered_.reset();
  if (!problem.empty()) let();
}

/// Exports what peers need, and queues the writing of what they will read.
void IpcPeers::greet(Greeting& greeting) {
  const std::shared_ptr<const DeviceContext>& context = resources_.context();
  gpu::set_text(greeting.uuid, context->gpu().uuid);
  peers_[own_].address = resources_.fusion();
  const auto exported = export_memory(*context, resources_.fusion(), resources_.fusion_bytes());
  if (!exported) throw Error("CUDA cannot export the fusion buffer of this GPU");
  greeting.fusion = *exported;
  if (own_ == 0) {
    offered_ = std::make_unique<shm::OfferedMemory>(size() * kFlagBytes);
    greeting.flags = offered_->offer();
  }
  resources_.stream().fill(resources_.fusion(), sight_of(own_), kLook,
                           "writing to the fusion buffer");
}

/// Maps the peers' memory and the flags, and records a meeting.
void IpcPeers::open(const std::vector<Greeting>& greetings,
                    const std::vector<std::string>& visible) {
  const std::string own_uuid = resources_.context()->gpu().uuid;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    peers_[rank].memory = greetings[rank].fusion;
    const std::string uuid = greetings[rank].uuid.data();
    if (uuid == own_uuid) continue;  // a rank's own GPU needs no permission
    traffic_ = Traffic::Link;
    const bool is_visible =
        visible.empty() || std::any_of(visible.begin(), visible.end(), [&](const auto& beginning) {
          return uuid.starts_with(beginning);
        });
    if (is_visible) continue;
    throw Error("RONDE_VISIBLE_DEVICES does not name the GPU of rank " +
                std::to_string(ranks_[rank]) + " (" + uuid + ")");
  }
  hold();
  signals_ = std::make_unique<PeerSignals>(resources_.context(),
                                           shm::map_offered(greetings.front().flags), size(), own_);
  record();
}

/// Queues copies of the peers' patterns.
void IpcPeers::look_at_peers() {
  sight_ = PinnedMemory(resources_.context(), size() * kLook);
  std::memset(sight_.data(), 0, sight_.bytes());
  wait_for_all();
  for (std::size_t rank = 0; rank < size(); ++rank) {
    resources_.stream().copy(sight_.address() + rank * kLook, peers_[rank].address, kLook,
                             "reading the fusion buffer of rank " + std::to_string(ranks_[rank]));
  }
}

void IpcPeers::check_sight() const {
  for (std::size_t rank = 0; rank < size(); ++rank) {
    const std::byte* const bytes = sight_.data() + rank * kLook;
    const bool is_right = std::all_of(
        bytes, bytes + kLook, [&](std::byte byte) { return byte == std::byte{sight_of(rank)}; });
    if (is_right) continue;
    throw Error("what rank " + std::to_string(ranks_[rank]) +
                " wrote to its GPU's memory does not show in its mapping");
  }
}

std::size_t IpcPeers::hold() {
  std::size_t mapped = 0;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    Peer& peer = peers_[rank];
    if (rank == own_ || peer.mapping) continue;
    peer.mapping = map_memory(resources_.context(), peer.memory, ranks_[rank]);
    peer.address = peer.mapping.get() + peer.memory.offset;
    ++mapped;
  }
  return mapped;
}

void IpcPeers::let() noexcept {
  for (Peer& peer : peers_) peer.mapping = {};
}

}  // namespace ronde::cuda

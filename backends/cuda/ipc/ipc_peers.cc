// SPDX-License-Identifier: Apache-2.0
// How ranks find out whether CUDA IPC works: each exports its fusion buffer and writes a pattern
// behind it; they exchange handles, map each other's buffers, synchronise once as operations will,
// and compare the patterns that they read. After each step all agree to go on, or to stage instead.
#include "backends/cuda/ipc/ipc_peers.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "backends/gpu/base/poll_until.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

/// Bytes that peers read in the trial.
constexpr std::size_t kLook = 16;
static_assert(kLook <= kBytesBehind);

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
    : size_(size),
      own_(own),
      memory_(std::move(memory)),
      pinned_(context, memory_.bytes().data(), memory_.bytes().size()) {}

template <typename AddressOf>
std::vector<DevicePointer> PeerSignals::flags(AddressOf address_of) const {
  std::vector<DevicePointer> addresses;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (rank != own_) addresses.push_back(pinned_.address() + address_of(rank));
  }
  return addresses;
}

void PeerSignals::record(Stream& stream) {
  stream.write(flags([this](std::size_t rank) { return rank * kFlagBytes + own_ * kFlag; }),
               ++recorded_);
}

void PeerSignals::wait_for_all(Stream& stream) {
  if (is_released_) return;
  stream.wait_for(flags([this](std::size_t rank) { return own_ * kFlagBytes + rank * kFlag; }),
                  recorded_);
}

void PeerSignals::release() noexcept {
  is_released_ = true;
  std::byte* const own = memory_.bytes().data() + own_ * kFlagBytes;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(own + rank * kFlag))
        .store(recorded_ + kFarAhead, std::memory_order_release);
  }
}

IpcPeers::IpcPeers(GpuResources& resources, std::vector<int> ranks, std::size_t own)
    : resources_(resources),
      ranks_(std::move(ranks)),
      own_(own),
      memories_(size()),
      mappings_(size()),
      addresses_(size()) {}

Steps IpcPeers::connect(gpu::HostExchange& exchange, const std::vector<std::string>& visible,
                        std::chrono::milliseconds patience, std::string& problem) {
  if (size() == 1) {
    addresses_[0] = resources_.fusion();
    co_return;
  }
  co_await try_out(exchange, visible, patience, problem);
  offered_.reset();
  if (!problem.empty()) {
    release();
    co_return forget();
  }
  end_trial();
}

Steps IpcPeers::try_out(gpu::HostExchange& exchange, const std::vector<std::string>& visible,
                        std::chrono::milliseconds patience, std::string& problem) {
  Greeting greeting;
  problem = problem_of([&] { greet(greeting); });
  co_await agree(exchange, ranks_, problem);
  if (!problem.empty()) co_return;

  co_await exchange.share(greeting);
  problem = problem_of([&] { open(exchange.all<Greeting>(), visible); });
  co_await agree(exchange, ranks_, problem);
  if (!problem.empty()) co_return;

  problem = problem_of([&] { look_at_peers(); });
  co_await finish_trial(patience, problem);
  if (problem.empty()) problem = problem_of([&] { check_sight(); });
  co_await agree(exchange, ranks_, problem);
}

/// Exports what peers need, and queues the writing of what they will read.
void IpcPeers::greet(Greeting& greeting) {
  const std::shared_ptr<const DeviceContext>& context = resources_.context();
  set_text(greeting.uuid, context->gpu().uuid);
  addresses_[own_] = resources_.fusion();
  const auto exported = export_memory(*context, resources_.fusion(), resources_.fusion_bytes());
  if (!exported) throw Error("CUDA cannot export the fusion buffer of this GPU");
  greeting.fusion = *exported;
  if (own_ == 0) {
    offered_ = std::make_unique<shm::OfferedMemory>(size() * kFlagBytes);
    greeting.flags = offered_->offer();
  }
  trial_ = std::make_unique<Trial>(context);
  trial_->stream.fill(place_of_sight(own_), sight_of(own_), kLook, "writing to the fusion buffer");
}

/// Maps the peers' memory and the flags, and records a meeting.
void IpcPeers::open(const std::vector<Greeting>& greetings,
                    const std::vector<std::string>& visible) {
  const std::string own_uuid = resources_.context()->gpu().uuid;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    memories_[rank] = greetings[rank].fusion;
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
  trial_->mappings = mappings_;
  signals_ = std::make_unique<PeerSignals>(resources_.context(),
                                           shm::map_offered(greetings.front().flags), size(), own_);
  signals_->record(trial_->stream);
}

/// Queues copies of the peers' patterns.
void IpcPeers::look_at_peers() {
  trial_->sight = resources_.pinned().take(size() * kLook);
  std::memset(trial_->sight.data(), 0, trial_->sight.bytes());
  signals_->wait_for_all(trial_->stream);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    trial_->stream.copy(trial_->sight.address() + rank * kLook, place_of_sight(rank), kLook,
                        "reading the fusion buffer of rank " + std::to_string(ranks_[rank]));
  }
}

void IpcPeers::check_sight() const {
  for (std::size_t rank = 0; rank < size(); ++rank) {
    const std::byte* const bytes = trial_->sight.data() + rank * kLook;
    const bool is_right = std::all_of(
        bytes, bytes + kLook, [&](std::byte byte) { return byte == std::byte{sight_of(rank)}; });
    if (is_right) continue;
    throw Error("what rank " + std::to_string(ranks_[rank]) +
                " wrote to its GPU's memory does not show in its mapping");
  }
}

/// Waits until the trial's stream is idle, unless there is a problem.
Steps IpcPeers::finish_trial(std::chrono::milliseconds patience, std::string& problem) {
  bool is_over = false;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  co_await until([&] {
    if (problem.empty()) problem = problem_of([&] { is_over = trial_->stream.is_idle(); });
    return is_over || !problem.empty() || std::chrono::steady_clock::now() >= deadline;
  });
  if (problem.empty() && !is_over) problem = "the memory of other ranks does not answer";
}

void IpcPeers::end_trial() noexcept {
  try {
    if (trial_ && trial_->stream.is_idle()) trial_.reset();
  } catch (const Error&) {
    // The GPU has failed and may still run the trial.
  }
}

bool IpcPeers::trial_ends(std::chrono::nanoseconds bound) noexcept {
  return poll_until(std::chrono::steady_clock::now() + bound, [this] {
    end_trial();
    return trial_ == nullptr;
  });
}

void IpcPeers::forget() noexcept {
  end_trial();
  let();
  offered_.reset();
}

std::size_t IpcPeers::hold() {
  std::size_t mapped = 0;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (rank == own_ || mappings_[rank]) continue;
    mappings_[rank] =
        std::make_shared<MappedMemory>(resources_.context(), memories_[rank], ranks_[rank]);
    addresses_[rank] = mappings_[rank]->address_of(memories_[rank]);
    ++mapped;
  }
  return mapped;
}

void IpcPeers::let() noexcept {
  for (std::shared_ptr<MappedMemory>& mapping : mappings_) mapping.reset();
}

}  // namespace ronde::cuda

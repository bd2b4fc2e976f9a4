// SPDX-License-Identifier: Apache-2.0
// How ranks find out whether CUDA IPC works: each exports its fusion buffer and writes a pattern
// behind it; they exchange handles, map each other's buffers, synchronise once as operations will,
// and compare the patterns that they read. After each step all agree to go on, or to stage instead.
#include "backends/cuda/ipc/ipc_peers.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "backends/gpu/base/poll_until.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

/// Bytes that peers read in the trial.
constexpr std::size_t kLook = 16;
static_assert(kLook <= kSightBytes);

/// The value that a rank writes for its peers.
unsigned char sight_of(std::size_t rank) {
  return static_cast<unsigned char>(rank + 1);
}

}  // namespace

IpcPeers::IpcPeers(GpuResources& resources, IpcSync sync, bool are_all, std::vector<int> ranks,
                   std::vector<std::size_t> here, std::size_t own)
    : resources_(resources),
      ranks_(std::move(ranks)),
      here_(std::move(here)),
      own_(own),
      memories_(here_.size()),
      mappings_(here_.size()),
      addresses_(here_.size()),
      wanted_(sync),
      are_all_(are_all) {}

Steps IpcPeers::connect(gpu::HostExchange& exchange, const VisibleDevices& visible,
                        std::chrono::milliseconds patience, std::string& problem) {
  if (ranks_.size() == 1) {
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

/// Each rank writes a pattern, maps its peers' memory, synchronises with them, and reads their
/// patterns. After each step the ranks agree whether all go on.
Steps IpcPeers::try_out(gpu::HostExchange& exchange, const VisibleDevices& visible,
                        std::chrono::milliseconds patience, std::string& problem) {
  Greeting greeting;
  problem = problem_of([&] { greet(greeting); });
  co_await finish_trial(patience, problem);
  co_await agree(exchange, problem);
  if (!problem.empty()) co_return;

  co_await exchange.share(greeting);
  problem = problem_of([&] {
    std::vector<Greeting> greetings;
    for (const std::size_t rank : here_) greetings.push_back(exchange.of<Greeting>(rank));
    open(greetings, visible);
    choose(greetings);
  });
  co_await agree(exchange, problem);
  if (!problem.empty()) co_return;

  problem = problem_of([&] { look_at_peers(); });
  co_await finish_trial(patience, problem);
  if (problem.empty()) problem = problem_of([&] { check_sight(); });
  co_await agree(exchange, problem);
}

/// As cuda::agree(); names the synchronisation that failed.
Steps IpcPeers::agree(gpu::HostExchange& exchange, std::string& problem) {
  if (!problem.empty() && sync_ == IpcSync::Kernels) {
    problem = "by kernels (RONDE_CUDA_IPC_SYNC=flags may work): " + problem;
  } else if (!problem.empty() && sync_ == IpcSync::Flags) {
    problem = "by flags: " + problem;
  }
  co_await cuda::agree(exchange, ranks_, problem);
}

/// Exports what peers need, and queues the writing of what they will read.
void IpcPeers::greet(Greeting& greeting) {
  const std::shared_ptr<const DeviceContext>& context = resources_.context();
  set_text(greeting.uuid, context->gpu().uuid);
  addresses_[own_] = resources_.fusion();
  const auto exported = export_memory(*context, resources_.fusion(), resources_.fusion_bytes());
  if (!exported) throw Error("CUDA cannot export the fusion buffer of this GPU");
  greeting.fusion = *exported;
  if (own_ == 0 && wanted_ != IpcSync::Kernels) {
    offered_ = std::make_unique<shm::OfferedMemory>(size() * kFlagBytes);
    greeting.flags = offered_->offer();
  }
  trial_ = std::make_unique<Trial>(context);
  constexpr const char* kDoing = "writing to the fusion buffer";
  trial_->stream.fill(place_of_sight(own_), sight_of(own_), kLook, kDoing);
  trial_->stream.fill(place_of_sight(own_) + kSightBytes, 0, kFlagBytes, kDoing);
}

void IpcPeers::open(const std::vector<Greeting>& greetings, const VisibleDevices& visible) {
  const std::string own_uuid = resources_.context()->gpu().uuid;
  for (std::size_t rank = 0; rank < greetings.size(); ++rank) {
    if (rank == own_) continue;
    memories_[rank] = greetings[rank].fusion;
    const std::string uuid = greetings[rank].uuid.data();
    if (uuid == own_uuid) continue;  // a rank's own GPU needs no permission
    traffic_ = Traffic::Link;
    if (visible.allows(uuid)) continue;
    throw Error("RONDE_VISIBLE_DEVICES does not name the GPU of rank " +
                std::to_string(name_of(rank)) + " (" + uuid + ")");
  }
  hold();
}

/// Chooses how the ranks of this host wait for each other, equally on all of them, and records.
void IpcPeers::choose(const std::vector<Greeting>& greetings) {
  std::set<std::string> gpus;
  for (const Greeting& greeting : greetings) gpus.insert(greeting.uuid.data());
  const bool have_one_each = are_all_ && gpus.size() == greetings.size();
  sync_ = wanted_ != IpcSync::Auto ? wanted_ : have_one_each ? IpcSync::Kernels : IpcSync::Flags;
  if (sync_ == IpcSync::Flags) {
    signals_ = std::make_unique<PeerSignals>(
        resources_.context(), shm::map_offered(greetings.front().flags), size(), own_);
  } else {
    signals_ = std::make_unique<PeerSignals>(
        resources_.kernels(), resources_.pinned().take(sizeof(std::uint32_t)),
        [this](std::size_t rank) { return place_of_sight(rank) + kSightBytes; }, size(), own_);
  }
  // The work of the trial's first part has run.
  trial_ = std::make_unique<Trial>(resources_.context());
  trial_->mappings = mappings_;
  signals_->record(trial_->stream);
}

/// Queues copies of the peers' patterns.
void IpcPeers::look_at_peers() {
  trial_->sight = resources_.pinned().take(size() * kLook);
  std::memset(trial_->sight.data(), 0, trial_->sight.bytes());
  signals_->wait_for_all(trial_->stream);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    trial_->stream.copy(trial_->sight.address() + rank * kLook, place_of_sight(rank), kLook,
                        "reading the fusion buffer of rank " + std::to_string(name_of(rank)));
  }
}

void IpcPeers::check_sight() const {
  for (std::size_t rank = 0; rank < size(); ++rank) {
    const std::byte* const bytes = trial_->sight.data() + rank * kLook;
    const bool is_right = std::all_of(
        bytes, bytes + kLook, [&](std::byte byte) { return byte == std::byte{sight_of(rank)}; });
    if (is_right) continue;
    throw Error("what rank " + std::to_string(name_of(rank)) +
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
        std::make_shared<MappedMemory>(resources_.context(), memories_[rank], name_of(rank));
    addresses_[rank] = mappings_[rank]->address_of(memories_[rank]);
    ++mapped;
  }
  return mapped;
}

void IpcPeers::let() noexcept {
  for (std::shared_ptr<MappedMemory>& mapping : mappings_) mapping.reset();
}

}  // namespace ronde::cuda

// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ipc_peers.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "backends/cuda/verdict.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

/// What the others look at when they try out whether they reach a rank's memory.
constexpr std::size_t kLook = 16;
static_assert(kLook <= kSightBytes);

constexpr const char* kNoAnswer = "the memory of other ranks does not answer";

/// What a rank writes for the others to see.
unsigned char sight_of(std::size_t rank) {
  return static_cast<unsigned char>(rank + 1);
}

}  // namespace

/// What all ranks do at the same time when they connect: none goes on where one could not.
class IpcPeers::Meeting {
 public:
  Meeting(IpcPeers& peers, device::HostExchange& exchange, std::chrono::milliseconds patience)
      : peers_(peers), exchange_(exchange), patience_(patience) {}

  /// Tells the others why this rank cannot go on; leaves in `problem` that of the first that
  /// cannot.
  device::Steps agree(std::string& problem) {
    exchange_.start(Verdict(problem));
    co_await device::until([this] { return exchange_.poll(); });
    problem = first_problem(exchange_.all<Verdict>(), peers_.ranks_);
  }
  /// Of this host, by rank.
  device::Steps greet(const Greeting& own) {
    exchange_.start(own);
    co_await device::until([this] { return exchange_.poll(); });
    greetings.clear();
    for (const std::size_t rank : peers_.here_) greetings.push_back(exchange_.of<Greeting>(rank));
  }
  /// Until the last trial's stream has run all, unless there is a problem.
  device::Steps finish(std::string& problem) {
    bool is_over = false;
    const auto deadline = std::chrono::steady_clock::now() + patience_;
    co_await device::until([&] {
      if (problem.empty()) {
        problem = problem_of([&] { is_over = peers_.trials_.back()->stream.is_idle(); });
      }
      return is_over || !problem.empty() || std::chrono::steady_clock::now() >= deadline;
    });
    if (problem.empty() && !is_over) problem = kNoAnswer;
  }

  std::vector<Greeting> greetings;

 private:
  IpcPeers& peers_;
  device::HostExchange& exchange_;
  const std::chrono::milliseconds patience_;
};

IpcPeers::IpcPeers(Workbench& bench, RegistrationCache& cache, std::shared_ptr<OpenHandles> handles,
                   IpcHandover handover, std::vector<int> ranks, std::vector<std::size_t> here,
                   std::size_t own)
    : bench_(bench),
      cache_(cache),
      handles_(std::move(handles)),
      ranks_(std::move(ranks)),
      here_(std::move(here)),
      own_(own),
      memories_(here_.size()),
      mappings_(here_.size()),
      addresses_(here_.size()),
      wanted_(handover) {}

device::Steps IpcPeers::connect(device::HostExchange& exchange, const VisibleDevices& visible,
                                std::chrono::milliseconds patience, Findings& findings) {
  if (ranks_.size() == 1) {
    addresses_[0] = bench_.fusion();
    co_return;
  }
  Meeting meeting(*this, exchange, patience);
  std::string& problem = findings.problem;
  Greeting greeting;
  problem = problem_of([&] { greet(greeting); });
  device::Steps greeting_all = meeting.greet(greeting);
  co_await greeting_all;
  if (problem.empty()) {
    device::Steps writing = meeting.finish(problem);
    co_await writing;
  }
  device::Steps agreeing = meeting.agree(problem);
  co_await agreeing;
  if (!problem.empty()) co_return forget();

  problem = problem_of([&] { open(meeting.greetings, visible); });
  device::Steps opening = meeting.agree(problem);
  co_await opening;
  if (!problem.empty()) co_return forget();

  for (const IpcHandover choice : choices(meeting.greetings)) {
    findings.remark = problem;
    problem.clear();
    device::Steps trying = try_out(meeting, choice, problem);
    co_await trying;
    if (problem.empty()) break;
  }
  offered_.reset();
  if (!problem.empty()) co_return forget();
  events_.reset();
  end_trials();
  let();
}

/// Exports what the others need, and writes what they will look for; nobody has recorded anything.
void IpcPeers::greet(Greeting& greeting) {
  const std::shared_ptr<const DeviceContext>& context = bench_.context();
  set_text(greeting.uuid, context->gpu().uuid);
  addresses_[own_] = bench_.fusion();
  const auto exported = export_memory(*context, bench_.fusion(), bench_.fusion_bytes());
  if (!exported) throw Error("CUDA cannot export the fusion buffer of this GPU");
  greeting.fusion = *exported;
  if (wanted_ == IpcHandover::Auto || wanted_ == IpcHandover::Events) {
    events_ = std::make_unique<EventSignals>(context, size(), own_);
    greeting.events = events_->exported();
  }
  if (own_ == 0 && (wanted_ == IpcHandover::Auto || wanted_ == IpcHandover::Flags)) {
    greeting.flags = offer_flags();
  }
  begin_trial();
  const Stream& stream = trials_.back()->stream;
  const Current current(*context);
  const auto fill = [&](DevicePointer at, unsigned char value, std::size_t bytes) {
    ronde::cuda::check(context->api(), "writing to the fusion buffer", context->api().fill, at,
                       value, bytes, stream.handle());
  };
  fill(place_of_sight(own_), sight_of(own_), kLook);
  fill(place_of_sight(own_) + kSightBytes, 0, kFlagBytes);
}

/// Nothing where this rank cannot: then flags fail in their trial.
shm::MemoryOffer IpcPeers::offer_flags() {
  try {
    offered_ = std::make_unique<shm::OfferedMemory>(size() * kFlagBytes);
    return offered_->offer();
  } catch (const Error&) {
    return {};
  }
}

void IpcPeers::open(const std::vector<Greeting>& greetings, const VisibleDevices& visible) {
  const std::string own_uuid = bench_.context()->gpu().uuid;
  for (std::size_t rank = 0; rank < greetings.size(); ++rank) {
    if (rank == own_) continue;
    const std::string uuid = greetings[rank].uuid.data();
    // What the rank itself uses needs no permission.
    if (uuid != own_uuid && !visible.allows(uuid)) {
      throw Error("RONDE_VISIBLE_DEVICES does not name the GPU of rank " +
                  std::to_string(name_of(rank)) + " (" + uuid + ")");
    }
    memories_[rank] = greetings[rank].fusion;
  }
  hold();
}

/// How the ranks of this host may hand over, what is best first; of all hosts as many.
std::vector<IpcHandover> IpcPeers::choices(const std::vector<Greeting>& greetings) const {
  if (wanted_ != IpcHandover::Auto) return {wanted_};
  std::set<std::string> gpus;
  for (const Greeting& greeting : greetings) gpus.insert(greeting.uuid.data());
  const bool all_differ = gpus.size() == greetings.size();
  return {all_differ ? IpcHandover::Kernels : IpcHandover::Flags, IpcHandover::Events};
}

void IpcPeers::choose(IpcHandover handover, const std::vector<Greeting>& greetings) {
  handover_ = handover;
  given_up_ = std::move(signals_);
  if (handover == IpcHandover::Events) {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (rank != own_) events_->open(rank, greetings[rank].events, name_of(rank));
    }
    signals_ = std::move(events_);
    return;
  }
  if (handover == IpcHandover::Flags) {
    const shm::MemoryOffer& offer = greetings.front().flags;
    if (offer.bytes == 0) throw Error("the first rank of this host has no host memory to share");
    signals_ =
        std::make_unique<StreamFlags>(bench_.context(), shm::map_offered(offer), size(), own_);
    return;
  }
  signals_ = std::make_unique<KernelFlags>(
      bench_.kernels(), bench_.pinned().take(sizeof(std::uint32_t)),
      [this](std::size_t rank) { return place_of_sight(rank) + kSightBytes; }, size(), own_);
}

/// Whether ranks see what others have written before they handed over so.
device::Steps IpcPeers::try_out(Meeting& meeting, IpcHandover handover, std::string& problem) {
  problem = problem_of([&] {
    choose(handover, meeting.greetings);
    begin_trial();
    signals_->record(Mark::Packed, 0, trials_.back()->stream);
  });
  device::Steps recording = meeting.agree(problem);
  co_await recording;
  if (problem.empty()) {
    problem = problem_of([&] { look_at_peers(); });
    device::Steps looking = meeting.finish(problem);
    co_await looking;
    if (problem.empty()) problem = problem_of([&] { check_sight(); });
    device::Steps agreeing = meeting.agree(problem);
    co_await agreeing;
  }
  if (!problem.empty()) release();
}

/// After this, what hangs is of others before.
void IpcPeers::begin_trial() {
  end_trials();
  trials_.push_back(std::make_unique<Trial>(bench_.context()));
  trials_.back()->mappings = mappings_;
}

/// Queues copies of what the others have written.
void IpcPeers::look_at_peers() {
  Trial& trial = *trials_.back();
  trial.sight = bench_.pinned().take(size() * kLook);
  std::memset(trial.sight.data(), 0, trial.sight.bytes());
  signals_->wait_for_all(Mark::Packed, 0, trial.stream);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    trial.stream.copy(trial.sight.address() + rank * kLook, place_of_sight(rank), kLook,
                      "reading the fusion buffer of rank " + std::to_string(name_of(rank)));
  }
}

void IpcPeers::check_sight() const {
  for (std::size_t rank = 0; rank < size(); ++rank) {
    const std::byte* const bytes = trials_.back()->sight.data() + rank * kLook;
    const bool is_right = std::all_of(
        bytes, bytes + kLook, [&](std::byte byte) { return byte == std::byte{sight_of(rank)}; });
    if (is_right) continue;
    throw Error("what rank " + std::to_string(name_of(rank)) +
                " wrote to its GPU's memory does not show in its mapping");
  }
}

void IpcPeers::end_trials() noexcept {
  std::erase_if(trials_, [](const std::unique_ptr<Trial>& trial) {
    try {
      return trial->stream.is_idle();
    } catch (const Error&) {
      return false;  // the GPU has failed: what it still does is not known
    }
  });
}

bool IpcPeers::hangs() noexcept {
  end_trials();
  return !trials_.empty();
}

void IpcPeers::forget() noexcept {
  end_trials();
  let();
  for (const int rank : ranks_) cache_.drop(rank);
  if (signals_) signals_->forget();
}

void IpcPeers::hold() {
  addresses_[own_] = bench_.fusion();
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (rank == own_) continue;
    mappings_[rank] = map(memories_[rank], rank);
    addresses_[rank] = mappings_[rank]->address_of(memories_[rank]);
  }
}

std::shared_ptr<MappedMemory> IpcPeers::map(const ExportedMemory& memory, std::size_t rank) {
  return map_memory(cache_, *handles_, bench_.context(), memory, name_of(rank));
}

void IpcPeers::let() noexcept {
  for (std::shared_ptr<MappedMemory>& mapping : mappings_) mapping.reset();
}

}  // namespace ronde::cuda

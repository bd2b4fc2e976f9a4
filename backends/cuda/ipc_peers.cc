// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ipc_peers.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "backends/cuda/poll_until.h"
#include "backends/cuda/verdict.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

/// What the others look at when they try out whether they reach a rank's memory.
constexpr std::size_t kLook = 16;
static_assert(kLook <= kSightBytes);

constexpr const char* kNoAnswer = "the memory of other ranks does not answer";

/// In texts of what is wrong with it.
std::string text_of(IpcHandover handover) {
  if (handover == IpcHandover::Events) return "by events: ";
  return handover == IpcHandover::Kernels ? "by kernels: " : "by flags: ";
}

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
                   IpcHandover handover, bool are_all, std::vector<int> ranks,
                   std::vector<std::size_t> here, std::size_t own)
    : bench_(bench),
      cache_(cache),
      handles_(std::move(handles)),
      ranks_(std::move(ranks)),
      here_(std::move(here)),
      own_(own),
      memories_(here_.size()),
      mappings_(here_.size()),
      addresses_(here_.size()),
      wanted_(handover),
      are_all_(are_all) {}

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
    findings.remark = std::exchange(problem, {});
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
  prepare(greeting);
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

/// What others need of this rank for the ways to hand over that may be chosen. What does not work
/// is told when it is.
void IpcPeers::prepare(Greeting& greeting) {
  const auto may_be = [&](IpcHandover handover) {
    return wanted_ == IpcHandover::Auto || wanted_ == handover;
  };
  if (may_be(IpcHandover::Events)) {
    problem_of_events_ = problem_of([&] {
      events_ = std::make_unique<EventSignals>(bench_.context(), size(), own_);
      greeting.events = events_->exported();
      greeting.has_events = true;
    });
  }
  if (own_ == 0 && may_be(IpcHandover::Flags)) {
    problem_of_flags_ = problem_of([&] {
      offered_ = std::make_unique<shm::OfferedMemory>(size() * kFlagBytes);
      greeting.flags = offered_->offer();
    });
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
  const bool have_one_each = are_all_ && gpus.size() == greetings.size();
  return {have_one_each ? IpcHandover::Kernels : IpcHandover::Flags, IpcHandover::Events};
}

void IpcPeers::choose(IpcHandover handover, const std::vector<Greeting>& greetings) {
  handover_ = handover;
  given_up_ = std::move(signals_);
  if (handover == IpcHandover::Events) {
    if (!problem_of_events_.empty()) throw Error(problem_of_events_);
    for (std::size_t rank = 0; rank < size(); ++rank) {
      // A rank that has none says so itself.
      if (rank != own_ && greetings[rank].has_events)
        events_->open(rank, greetings[rank].events, name_of(rank));
    }
    signals_ = std::move(events_);
  } else if (handover == IpcHandover::Flags) {
    if (!problem_of_flags_.empty()) throw Error(problem_of_flags_);
    auto memory =
        std::make_shared<const shm::SharedMemory>(shm::map_offered(greetings.front().flags));
    auto pinned = std::make_shared<const PinnedRange>(bench_.context(), memory->bytes().data(),
                                                      memory->bytes().size());
    signals_ = std::make_unique<StreamFlags>(std::move(memory), std::move(pinned), size(), own_);
  } else {
    signals_ = std::make_unique<KernelFlags>(
        bench_.kernels(), bench_.pinned().take(sizeof(std::uint32_t)),
        [this](std::size_t rank) { return place_of_sight(rank) + kSightBytes; }, size(), own_);
  }
}

/// Whether ranks see what others have written before they handed over so.
device::Steps IpcPeers::try_out(Meeting& meeting, IpcHandover handover, std::string& problem) {
  // Other hosts may be at another kind.
  const auto tell_kind = [&] {
    if (!problem.empty()) problem = text_of(handover) + problem;
  };
  problem = problem_of([&] {
    choose(handover, meeting.greetings);
    begin_trial();
    signals_->record(Mark::Packed, 0, trials_.back()->stream);
  });
  tell_kind();
  device::Steps recording = meeting.agree(problem);
  co_await recording;
  if (problem.empty()) {
    problem = problem_of([&] { look_at_peers(); });
    device::Steps looking = meeting.finish(problem);
    co_await looking;
    if (problem.empty()) problem = problem_of([&] { check_sight(); });
    tell_kind();
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

bool IpcPeers::trials_end(std::chrono::nanoseconds bound) noexcept {
  return poll_until(std::chrono::steady_clock::now() + bound, [this] {
    end_trials();
    return trials_.empty();
  });
}

void IpcPeers::forget() noexcept {
  end_trials();
  let();
  offered_.reset();
  for (const int rank : ranks_) cache_.drop(rank);
  for (PeerSignals* const each : {static_cast<PeerSignals*>(events_.get()), signals_.get()}) {
    if (each != nullptr) each->forget();
  }
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

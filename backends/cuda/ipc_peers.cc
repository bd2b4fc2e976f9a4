// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ipc_peers.h"

#include <algorithm>
#include <cstring>

#include "backends/cuda/verdict.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

/// Of each rank's fusion buffer, what the others look at when they try it out.
constexpr std::size_t kSightBytes = 16;
static_assert(kSightBytes <= kTrialBytes);

/// What a rank writes for the others to see.
unsigned char sight_of(std::size_t rank) {
  return static_cast<unsigned char>(rank + 1);
}

}  // namespace

SharedEvent::SharedEvent(std::shared_ptr<const DeviceContext> context)
    : context_(std::move(context)) {
  const Current current(*context_);
  check(context_->api(), "making an event for other processes", context_->api().event_create,
        &handle_, kEventDisableTiming | kEventInterprocess);
}

SharedEvent::SharedEvent(std::shared_ptr<const DeviceContext> context, const IpcEventHandle& handle,
                         int owner)
    : context_(std::move(context)) {
  const Current current(*context_);
  check(context_->api(), "opening an event of rank " + std::to_string(owner),
        context_->api().ipc_open_event, &handle_, handle);
}

SharedEvent& SharedEvent::operator=(SharedEvent&& other) noexcept {
  if (this == &other) return *this;
  destroy();
  context_ = std::move(other.context_);
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

IpcEventHandle SharedEvent::exported() const {
  IpcEventHandle handle{};
  const Current current(*context_);
  check(context_->api(), "exporting an event", context_->api().ipc_get_event, &handle, handle_);
  return handle;
}

void SharedEvent::destroy() noexcept {
  if (handle_ != nullptr) context_->release(context_->api().event_destroy, handle_);
  handle_ = nullptr;
}

IpcPeers::IpcPeers(Workbench& bench, RegistrationCache& cache, std::shared_ptr<OpenHandles> handles,
                   std::vector<int> ranks, std::vector<std::size_t> here, std::size_t own)
    : bench_(bench),
      cache_(cache),
      handles_(std::move(handles)),
      ranks_(std::move(ranks)),
      here_(std::move(here)),
      own_(own),
      memories_(here_.size()),
      mappings_(here_.size()),
      addresses_(here_.size()),
      events_(here_.size()) {}

device::Steps IpcPeers::connect(device::HostExchange& exchange, const VisibleDevices& visible,
                                std::chrono::milliseconds patience, std::string& problem) {
  if (ranks_.size() == 1) {
    addresses_[0] = bench_.fusion();
    co_return;
  }
  const auto has_come = [&exchange] { return exchange.poll(); };
  Greeting greeting;
  Verdict verdict(problem_of([&] { greet(greeting); }));
  exchange.start(greeting);
  co_await device::until(has_come);
  std::vector<Greeting> greetings;
  for (const std::size_t rank : here_) greetings.push_back(exchange.of<Greeting>(rank));

  exchange.start(verdict);
  co_await device::until(has_come);
  problem = first_problem(exchange.all<Verdict>(), ranks_);
  if (!problem.empty()) co_return forget();

  verdict = Verdict(problem_of([&] { open(greetings, visible); }));
  exchange.start(verdict);
  co_await device::until(has_come);
  problem = first_problem(exchange.all<Verdict>(), ranks_);
  if (!problem.empty()) co_return forget();

  std::string failure = problem_of([&] { look_at_peers(); });
  bool is_over = false;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const auto has_ended = [&] {
    if (failure.empty()) failure = problem_of([&] { is_over = trial_->stream.is_idle(); });
    return is_over || !failure.empty() || std::chrono::steady_clock::now() >= deadline;
  };
  co_await device::until(has_ended);
  if (failure.empty()) {
    failure =
        is_over ? problem_of([&] { check_sight(); }) : "the memory of other ranks does not answer";
  }
  exchange.start(Verdict(failure));
  co_await device::until(has_come);
  problem = first_problem(exchange.all<Verdict>(), ranks_);
  if (!problem.empty()) co_return forget();
  end_trial();
  let();
}

/// Exports what the others need, and writes what they will look for.
void IpcPeers::greet(Greeting& greeting) {
  const std::shared_ptr<const DeviceContext>& context = bench_.context();
  set_text(greeting.uuid, context->gpu().uuid);
  addresses_[own_] = bench_.fusion();
  const auto exported = export_memory(*context, bench_.fusion(), bench_.fusion_bytes());
  if (!exported) throw Error("CUDA cannot export the fusion buffer of this GPU");
  greeting.fusion = *exported;
  auto& events = events_[own_];
  for (std::size_t i = 0; i < events.size(); ++i) {
    events[i] = SharedEvent(context);
    greeting.events[i] = events[i].exported();
  }
  trial_ = std::make_unique<Trial>(context);
  const Current current(*context);
  ronde::cuda::check(context->api(), "writing to the fusion buffer", context->api().fill,
                     place_of_sight(own_), sight_of(own_), kSightBytes, trial_->stream.handle());
  record(Mark::Packed, 0, trial_->stream);
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
    for (std::size_t i = 0; i < events_[rank].size(); ++i) {
      events_[rank][i] = SharedEvent(bench_.context(), greetings[rank].events[i], name_of(rank));
    }
  }
  hold();
}

/// Queues copies of what the others have written.
void IpcPeers::look_at_peers() {
  trial_->mappings = mappings_;
  trial_->sight = bench_.pinned().take(size() * kSightBytes);
  std::memset(trial_->sight.data(), 0, trial_->sight.bytes());
  wait_for_all(Mark::Packed, 0, trial_->stream);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    trial_->stream.copy(trial_->sight.address() + rank * kSightBytes, place_of_sight(rank),
                        kSightBytes,
                        "reading the fusion buffer of rank " + std::to_string(name_of(rank)));
  }
}

void IpcPeers::check_sight() const {
  for (std::size_t rank = 0; rank < size(); ++rank) {
    const std::byte* const bytes = trial_->sight.data() + rank * kSightBytes;
    const bool is_right = std::all_of(bytes, bytes + kSightBytes, [&](std::byte byte) {
      return byte == std::byte{sight_of(rank)};
    });
    if (is_right) continue;
    throw Error("what rank " + std::to_string(name_of(rank)) +
                " wrote to its GPU's memory does not show in its mapping");
  }
}

void IpcPeers::end_trial() noexcept {
  if (!trial_) return;
  try {
    if (trial_->stream.is_idle()) trial_.reset();
  } catch (const Error&) {
    // The GPU has failed: what it still does is not known.
  }
}

void IpcPeers::forget() noexcept {
  end_trial();
  let();
  for (const int rank : ranks_) cache_.drop(rank);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (rank != own_) events_[rank] = {};
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

void IpcPeers::record(Mark mark, std::size_t half, const Stream& stream) {
  if (size() == 1) return;
  const DeviceContext& context = *bench_.context();
  const Current current(context);
  ronde::cuda::check(context.api(), "telling the other ranks", context.api().event_record,
                     event(own_, mark, half).handle(), stream.handle());
}

void IpcPeers::wait_for_all(Mark mark, std::size_t half, const Stream& stream) {
  const DeviceContext& context = *bench_.context();
  const Current current(context);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (rank == own_) continue;
    ronde::cuda::check(context.api(), "waiting for the other ranks",
                       context.api().stream_wait_event, stream.handle(),
                       event(rank, mark, half).handle(), 0U);
  }
}

}  // namespace ronde::cuda

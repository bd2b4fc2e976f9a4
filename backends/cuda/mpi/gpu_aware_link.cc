// SPDX-License-Identifier: Apache-2.0
// How ranks find out whether MPI takes addresses of GPUs: each sends a large message to the next
// rank and small ones to all, and checks what arrives. If messages do not arrive in time, MPI is
// aborted, and keeps their memory until the process ends.
#include "backends/cuda/mpi/gpu_aware_link.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "backends/gpu/base/abandon.h"
#include "backends/gpu/base/peer_status.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes of the trial's messages: MPI libraries send large ones by another protocol.
constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr std::size_t kSmall = 64;

/// The value of the bytes that a rank sends in the trial.
unsigned char content_of(std::size_t rank) {
  return static_cast<unsigned char>(rank % 255 + 1);
}

}  // namespace

std::unique_ptr<Backend> make_direct_messages(const BackendFactory& factory, std::size_t most_ranks,
                                              BackendContext& context) {
  const auto ranks = static_cast<std::size_t>(context.topology->size);
  if (!factory.create || ranks == 1 || ranks > most_ranks) return nullptr;
  if (context.set != 0 && !factory.serves_sets) return nullptr;
  for (const std::string& problem :
       context.exchange(factory.problem ? factory.problem() : std::string())) {
    if (!problem.empty()) return nullptr;
  }
  return factory.create(context);
}

/// The resources of the trial, apart from those of operations; abandoned if it does not end.
struct GpuAwareLink::Trial {
  /// Queues the writing of what is sent.
  Trial(GpuResources& resources, std::size_t ranks, std::size_t own)
      : memory(resources.context(), 2 * kLarge + ranks * kSmall),
        seen(resources.pinned().take(kLarge + ranks * kSmall)),
        queued(resources.events().take()) {
    constexpr const char* kDoing = "writing to the memory of the trial";
    resources.stream().fill(sent(), content_of(own), kLarge, kDoing);
    resources.stream().fill(received(), 0, kLarge + ranks * kSmall, kDoing);
    resources.stream().record(queued);
  }

  DevicePointer sent() const noexcept { return memory.address(); }
  /// The large message of the previous rank, followed by the small ones of all ranks.
  DevicePointer received() const noexcept { return memory.address() + kLarge; }

  DeviceMemory memory;
  PinnedBlock seen;
  Event queued;
};

GpuAwareLink::GpuAwareLink(std::unique_ptr<Backend> messages, vendor::WrapCalls wrap,
                           std::vector<int> ranks, int own)
    : messages_(std::move(messages)),
      wrap_(std::move(wrap)),
      ranks_(std::move(ranks)),
      own_(static_cast<std::size_t>(own)) {}

GpuAwareLink::~GpuAwareLink() {
  unwrap_calls();
  drop_trial();
}

Steps GpuAwareLink::prove(GpuResources& resources, gpu::HostExchange& exchange,
                          std::chrono::milliseconds patience, std::string& problem) {
  problem = problem_of([&] {
    trial_ = std::make_unique<Trial>(resources, size(), own_);
    wrap_calls(resources.context());
  });
  const auto is_queue_done = [this] { return trial_->queued.is_done(); };
  if (problem.empty()) co_await until(is_queue_done);
  // No rank sends before all are ready, as one may take long to load the kernels: the deadline is
  // for messages alone.
  co_await agree(exchange, ranks_, problem);
  if (!problem.empty()) {
    unwrap_calls();
    co_return drop_trial();
  }
  const Clock::time_point deadline = Clock::now() + patience;
  for (const bool is_large : {true, false}) {
    if (!problem.empty() || hangs()) break;
    problem = problem_of([&] { begin_trial(is_large); });
    co_await until([&] {
      if (problem.empty()) problem = problem_of([this] { have_ended(); });
      return !problem.empty() || !hangs() || Clock::now() >= deadline;
    });
  }
  if (problem.empty() && !hangs()) {
    resources.stream().copy(trial_->seen.address(), trial_->received(), kLarge + size() * kSmall,
                            "copying from the GPU");
    resources.stream().record(trial_->queued);
    co_await until(is_queue_done);
    problem = problem_of([this] { check_trial(); });
  }
  // Where messages have merely not arrived, another rank may know why.
  co_await agree(exchange, ranks_, problem);
  co_await exchange.share(hangs());
  const std::vector<bool> all_hang = exchange.all<bool>();
  if (std::find(all_hang.begin(), all_hang.end(), true) != all_hang.end()) {
    if (problem.empty()) problem = "messages of the trial do not arrive";
    abort();
  }
  if (!problem.empty()) unwrap_calls();
  drop_trial();
  pending_.clear();  // what MPI has of them stays with MPI
}

/// Begins a large message to the next rank, or a small one to each other rank.
void GpuAwareLink::begin_trial(bool is_large) {
  for (std::size_t i = 1; i < (is_large ? 2 : size()); ++i) {
    const std::size_t from = (own_ + size() - i) % size();
    const std::size_t bytes = is_large ? kLarge : kSmall;
    receive(from, trial_->received() + (is_large ? 0 : kLarge + from * kSmall), bytes);
    send((own_ + i) % size(), trial_->sent(), bytes);
  }
}

void GpuAwareLink::check_trial() const {
  const std::byte* const seen = trial_->seen.data();
  const auto check_part = [&](std::size_t rank, const std::byte* begin, std::size_t bytes) {
    const bool is_right = std::all_of(
        begin, begin + bytes, [&](std::byte byte) { return byte == std::byte{content_of(rank)}; });
    if (is_right) return;
    throw Error("a message of " + std::to_string(bytes) + " bytes from the GPU of rank " +
                std::to_string(ranks_[rank]) + " arrived with wrong content");
  };
  check_part((own_ + size() - 1) % size(), seen, kLarge);
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (rank != own_) check_part(rank, seen + kLarge + rank * kSmall, kSmall);
  }
}

void GpuAwareLink::drop_trial() noexcept {
  if (hangs()) {
    gpu::abandon(std::move(trial_));
  } else {
    trial_.reset();
  }
}

void GpuAwareLink::wrap_calls(std::shared_ptr<const DeviceContext> context) {
  if (!wrap_) return;
  wrapped_calls_ = wrap_([context = std::move(context)](const std::function<void()>& call) {
    std::optional<Current> current;
    try {
      current.emplace(*context);
    } catch (const DriverError& error) {
      // At the end of the process the driver ends before MPI: no message is in flight then.
      if (error.result() != kDeinitialized) throw;
    }
    call();
  });
}

void GpuAwareLink::unwrap_calls() noexcept {
  if (wrapped_calls_ && hangs()) {
    gpu::abandon(std::make_unique<std::shared_ptr<void>>(std::move(wrapped_calls_)));
  } else {
    wrapped_calls_.reset();
  }
}

void GpuAwareLink::send(std::size_t to, DevicePointer from, std::size_t bytes) {
  pending_.push_back(messages_->send({.input = pointer_to(from),
                                      .count = bytes,
                                      .dtype = DataType::U8,
                                      .peer = static_cast<int>(to)}));
  sent_bytes_ += bytes;
}

void GpuAwareLink::receive(std::size_t from, DevicePointer to, std::size_t bytes) {
  pending_.push_back(messages_->recv({.output = writable(to),
                                      .count = bytes,
                                      .dtype = DataType::U8,
                                      .peer = static_cast<int>(from)}));
}

bool GpuAwareLink::have_ended() {
  for (auto message = pending_.begin(); message != pending_.end();) {
    message = (*message)->poll() ? pending_.erase(message) : std::next(message);
  }
  return pending_.empty();
}

void GpuAwareLink::abort() noexcept {
  if (std::exchange(is_over_, true)) return;
  messages_->abort();
  unwrap_calls();
}

void GpuAwareLink::close() {
  if (!is_over_) messages_->close();
  unwrap_calls();
}

}  // namespace ronde::cuda

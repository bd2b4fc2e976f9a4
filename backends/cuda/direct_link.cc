// SPDX-License-Identifier: Apache-2.0
// How ranks find out whether MPI takes addresses of GPUs: each sends a large message to the next
// rank and small ones to all, and checks what arrives. If messages do not arrive in time, MPI is
// aborted, and keeps their memory until the process ends.
#include "backends/cuda/direct_link.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "backends/cuda/verdict.h"
#include "backends/gpu/abandon.h"
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
struct DirectLink::Trial {
  /// Queues the writing of what is sent.
  Trial(Workbench& bench, std::size_t ranks, std::size_t own)
      : memory(bench.context(), 2 * kLarge + ranks * kSmall),
        seen(bench.pinned().take(kLarge + ranks * kSmall)),
        queued(bench.events().take()) {
    constexpr const char* kDoing = "writing to the memory of the trial";
    bench.stream().fill(sent(), content_of(own), kLarge, kDoing);
    bench.stream().fill(received(), 0, kLarge + ranks * kSmall, kDoing);
    bench.stream().record(queued);
  }

  DevicePointer sent() const noexcept { return memory.address(); }
  /// The large message of the previous rank, followed by the small ones of all ranks.
  DevicePointer received() const noexcept { return memory.address() + kLarge; }

  DeviceMemory memory;
  PinnedBlock seen;
  Event queued;
};

DirectLink::DirectLink(std::unique_ptr<Backend> messages, vendor::SurroundCalls surround,
                       std::vector<int> ranks, int own)
    : messages_(std::move(messages)),
      surround_(std::move(surround)),
      ranks_(std::move(ranks)),
      own_(static_cast<std::size_t>(own)) {}

DirectLink::~DirectLink() {
  end_surroundings();
  drop_trial();
}

Steps DirectLink::prove(Workbench& bench, gpu::HostExchange& exchange,
                        std::chrono::milliseconds patience, std::string& problem) {
  problem = problem_of([&] {
    trial_ = std::make_unique<Trial>(bench, size(), own_);
    surround_calls(bench.context());
  });
  const auto is_queue_done = [this] { return trial_->queued.is_done(); };
  if (problem.empty()) co_await until(is_queue_done);
  // No rank sends before all are ready, as one may take long to load the kernels: the deadline is
  // for messages alone.
  co_await agree(exchange, ranks_, problem);
  if (!problem.empty()) {
    end_surroundings();
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
    bench.stream().copy(trial_->seen.address(), trial_->received(), kLarge + size() * kSmall,
                        "copying from the GPU");
    bench.stream().record(trial_->queued);
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
  if (!problem.empty()) end_surroundings();
  drop_trial();
  pending_.clear();  // what MPI has of them stays with MPI
}

/// Begins a large message to the next rank, or a small one to each other rank.
void DirectLink::begin_trial(bool is_large) {
  for (std::size_t i = 1; i < (is_large ? 2 : size()); ++i) {
    const std::size_t from = (own_ + size() - i) % size();
    const std::size_t bytes = is_large ? kLarge : kSmall;
    receive(from, trial_->received() + (is_large ? 0 : kLarge + from * kSmall), bytes);
    send((own_ + i) % size(), trial_->sent(), bytes);
  }
}

void DirectLink::check_trial() const {
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

void DirectLink::drop_trial() noexcept {
  if (hangs()) {
    gpu::abandon(std::move(trial_));
  } else {
    trial_.reset();
  }
}

void DirectLink::surround_calls(std::shared_ptr<const DeviceContext> context) {
  if (!surround_) return;
  surrounded_ = surround_([context = std::move(context)](const std::function<void()>& call) {
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

void DirectLink::end_surroundings() noexcept {
  if (surrounded_ && hangs()) {
    gpu::abandon(std::move(surrounded_));
  } else {
    surrounded_.reset();
  }
}

void DirectLink::send(std::size_t to, DevicePointer from, std::size_t bytes) {
  pending_.push_back(messages_->send({.input = pointer_to(from),
                                      .count = bytes,
                                      .dtype = DataType::U8,
                                      .peer = static_cast<int>(to)}));
  sent_bytes_ += bytes;
}

void DirectLink::receive(std::size_t from, DevicePointer to, std::size_t bytes) {
  pending_.push_back(messages_->recv({.output = writable(to),
                                      .count = bytes,
                                      .dtype = DataType::U8,
                                      .peer = static_cast<int>(from)}));
}

bool DirectLink::have_ended() {
  for (auto message = pending_.begin(); message != pending_.end();) {
    message = (*message)->poll() ? pending_.erase(message) : std::next(message);
  }
  return pending_.empty();
}

void DirectLink::abort() noexcept {
  if (std::exchange(is_over_, true)) return;
  messages_->abort();
  end_surroundings();
}

void DirectLink::close() {
  if (!is_over_) messages_->close();
  end_surroundings();
}

}  // namespace ronde::cuda

// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/direct_link.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "backends/cuda/addresses.h"
#include "backends/cuda/verdict.h"
#include "backends/device/abandon.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

constexpr const char* kNotArrived = "messages of the trial do not arrive";

using Clock = std::chrono::steady_clock;

// Of the trial's messages: MPI libraries send large ones in another way than small ones.
constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr std::size_t kSmall = 64;

/// What a rank sends in the trial.
unsigned char content_of(std::size_t rank) {
  return static_cast<unsigned char>(rank % 255 + 1);
}

}  // namespace

std::unique_ptr<Backend> make_direct_messages(const BackendFactory& factory,
                                              BackendContext& context) {
  if (!factory.create || context.topology->size == 1) return nullptr;
  if (context.set != 0 && !factory.serves_sets) return nullptr;
  for (const std::string& problem :
       context.exchange(factory.problem ? factory.problem() : std::string())) {
    if (!problem.empty()) return nullptr;
  }
  return factory.create(context);
}

/// What the trial works with, apart from operations: where it does not end, it is abandoned.
struct DirectLink::Trial {
  Trial(Workbench& bench, std::size_t ranks)
      : stream(bench.context()),
        memory(bench.context(), 2 * kLarge + ranks * kSmall),
        seen(bench.pinned().take(kLarge + ranks * kSmall)),
        queued(bench.events().take()) {}

  DevicePointer sent() const noexcept { return memory.address(); }
  /// From the rank before, and behind it the small ones of all.
  DevicePointer received() const noexcept { return memory.address() + kLarge; }
  DevicePointer received_small(std::size_t rank) const noexcept {
    return received() + kLarge + rank * kSmall;
  }

  Stream stream;
  DeviceMemory memory;
  PinnedBlock seen;
  Event queued;
};

/// What each rank says after the trial.
struct DirectLink::Outcome {
  Verdict verdict;
  bool has_waited = false;  ///< nothing worse: another rank may know the cause
  bool hangs = false;       ///< MPI may still use memory, or has failed: it must not be asked again
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

device::Steps DirectLink::prove(Workbench& bench, device::HostExchange& exchange,
                                std::chrono::milliseconds patience, std::string& problem) {
  const auto has_come = [&exchange] { return exchange.poll(); };
  const Clock::time_point deadline = Clock::now() + patience;
  context_ = bench.context();
  std::string failure = problem_of([&] { prepare(bench); });
  if (failure.empty()) {
    device::Steps preparing = wait_for_gpu(deadline, failure);
    co_await preparing;
  }
  exchange.start(Verdict(failure));
  co_await device::until(has_come);
  problem = first_problem(exchange.all<Verdict>(), ranks_);
  if (!problem.empty()) {
    end_surroundings();
    co_return drop_trial();
  }
  device::Steps trying = run_trial(Clock::now() + patience, failure);
  co_await trying;
  exchange.start(Outcome{Verdict(failure), failure == kNotArrived, hangs()});
  co_await device::until(has_come);
  const auto outcomes = exchange.all<Outcome>();
  problem = problem_in(outcomes);
  const bool one_hangs = std::any_of(outcomes.begin(), outcomes.end(),
                                     [](const Outcome& outcome) { return outcome.hangs; });
  if (one_hangs) abort();
  if (!problem.empty()) end_surroundings();
  drop_trial();
  // What MPI has of them stays with MPI.
  pending_.clear();
}

/// Where messages do not arrive, what failed on another rank tells more.
std::string DirectLink::problem_in(const std::vector<Outcome>& outcomes) const {
  std::vector<Verdict> all;
  std::vector<Verdict> causes;
  for (const Outcome& outcome : outcomes) {
    all.push_back(outcome.verdict);
    causes.push_back(outcome.has_waited ? Verdict() : outcome.verdict);
  }
  const std::string cause = first_problem(causes, ranks_);
  return cause.empty() ? first_problem(all, ranks_) : cause;
}

/// Writes what the others will look for.
void DirectLink::prepare(Workbench& bench) {
  trial_ = std::make_unique<Trial>(bench, size());
  surround_calls();
  const Current current(*context_);
  check(context_->api(), "writing to the memory of the trial", context_->api().fill, trial_->sent(),
        content_of(own_), kLarge, trial_->stream.handle());
  check(context_->api(), "writing to the memory of the trial", context_->api().fill,
        trial_->received(), static_cast<unsigned char>(0), kLarge + size() * kSmall,
        trial_->stream.handle());
  trial_->stream.record(trial_->queued);
}

device::Steps DirectLink::wait_for_gpu(Clock::time_point deadline, std::string& failure) {
  bool is_done = false;
  co_await device::until([&] {
    failure = problem_of([&] { is_done = trial_->queued.is_done(); });
    return is_done || !failure.empty() || Clock::now() >= deadline;
  });
  if (failure.empty() && !is_done) failure = "the GPU does not answer";
}

device::Steps DirectLink::wait_for_messages(Clock::time_point deadline, std::string& failure) {
  bool have_come = false;
  co_await device::until([&] {
    failure = problem_of([&] { have_come = have_ended(); });
    return have_come || !failure.empty() || Clock::now() >= deadline;
  });
  if (failure.empty() && !have_come) failure = kNotArrived;
}

device::Steps DirectLink::run_trial(Clock::time_point deadline, std::string& failure) {
  for (void (DirectLink::*const begin)() : {&DirectLink::send_around, &DirectLink::send_to_all}) {
    failure = problem_of([&] { (this->*begin)(); });
    if (!failure.empty()) co_return;
    device::Steps waiting = wait_for_messages(deadline, failure);
    co_await waiting;
    if (!failure.empty()) co_return;
  }
  failure = problem_of([&] { read_trial(); });
  if (!failure.empty()) co_return;
  device::Steps reading = wait_for_gpu(deadline, failure);
  co_await reading;
  if (failure.empty()) failure = problem_of([&] { check_trial(); });
}

void DirectLink::send_around() {
  receive((own_ + size() - 1) % size(), trial_->received(), kLarge);
  send((own_ + 1) % size(), trial_->sent(), kLarge);
}

void DirectLink::send_to_all() {
  for (std::size_t i = 1; i < size(); ++i) {
    const std::size_t from = (own_ + size() - i) % size();
    receive(from, trial_->received_small(from), kSmall);
    send((own_ + i) % size(), trial_->sent(), kSmall);
  }
}

void DirectLink::read_trial() {
  trial_->stream.copy(trial_->seen.address(), trial_->received(), kLarge + size() * kSmall,
                      "copying from the GPU");
  trial_->stream.record(trial_->queued);
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

/// What MPI or the GPU may still use lives on.
void DirectLink::drop_trial() noexcept {
  if (!trial_) return;
  bool is_over = false;
  try {
    is_over = !hangs() && trial_->stream.is_idle();
  } catch (const Error&) {
    // The GPU has failed: what it still does is not known.
  }
  if (is_over) {
    trial_.reset();
  } else {
    device::abandon(std::move(trial_));
  }
}

void DirectLink::surround_calls() {
  if (!surround_) return;
  surrounded_ = surround_([context = context_](const std::function<void()>& call) {
    std::optional<Current> current;
    try {
      current.emplace(*context);
    } catch (const DriverError& error) {
      // As the process ends, the driver goes before MPI does: no message gets on then.
      if (error.result() != kDeinitialized) throw;
    }
    call();
  });
}

void DirectLink::end_surroundings() noexcept {
  if (surrounded_ && hangs()) {
    device::abandon(std::move(surrounded_));
  } else {
    surrounded_.reset();
  }
}

void DirectLink::send(std::size_t to, DevicePointer from, std::size_t bytes) {
  pending_.push_back(messages_->send({.input = pointer_to(from),
                                      .count = bytes,
                                      .dtype = DataType::U8,
                                      .peer = static_cast<int>(to)}));
  sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
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

// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/stop_signals.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <deque>
#include <mutex>

#include "core/src/base/system.h"
#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

using Action = struct sigaction;

// Read by the handlers: Note [Handlers of stop signals].
std::atomic<std::int64_t> requested_ms = 0;
std::array<std::atomic<int>, NSIG> users = {};  ///< objects for each signal
std::array<std::atomic<bool>, NSIG> came = {};  ///< while there were objects for it
std::array<std::atomic<const Action*>, NSIG> formers = {};
static_assert(std::atomic<std::int64_t>::is_always_lock_free && NSIG <= 65);
static_assert(std::atomic<const Action*>::is_always_lock_free);
// The signals whose former handlers run on this thread, a bit each. In static TLS: an access to
// dynamic TLS may allocate, which is not async-signal-safe.
[[gnu::tls_model("initial-exec")]] constinit thread_local std::uint64_t running_formers = 0;

std::mutex mutex;  ///< of install() and uninstall()

/// A scheduler that signals a whole job step reaches a rank twice: directly, and by its launcher.
constexpr std::int64_t kRepeat_ms = 1000;

/// Records the request. Returns whether this is a repeated signal, which should end the process.
bool request_stop() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t now_ms = 1 + now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
  std::int64_t first_ms = 0;
  return !requested_ms.compare_exchange_strong(first_ms, now_ms) && now_ms - first_ms >= kRepeat_ms;
}

/// `run_former` gets the former action.
template <typename RunFormer>
void handle(int signal, const RunFormer& run_former) {
  const int error = errno;
  const auto place = static_cast<std::size_t>(signal);
  const bool is_used = users[place].load() > 0;
  if (is_used) came[place].store(true);
  const bool ends = is_used && request_stop();
  // A handler that the program installed between two of ours is our former, and may call us.
  const std::uint64_t bit = std::uint64_t{1} << (place - 1);
  if ((running_formers & bit) == 0) {
    running_formers |= bit;
    run_former(*formers[place].load());
    running_formers &= ~bit;
  }
  if (ends) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  errno = error;
}

bool is_handler(const Action& action) {
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

/// Whether it is a handler with three arguments.
bool has_info(const Action& action) {
  return is_handler(action) && (action.sa_flags & SA_SIGINFO) != 0;
}

void on_signal(int signal) {
  handle(signal, [signal](const Action& former) {
    if (is_handler(former) && !has_info(former)) former.sa_handler(signal);
  });
}

void on_signal_with_info(int signal, siginfo_t* info, void* context) {
  handle(signal, [=](const Action& former) {
    if (has_info(former)) former.sa_sigaction(signal, info, context);
  });
}

bool is_ours(const Action& action) {
  return has_info(action) ? action.sa_sigaction == on_signal_with_info
                          : action.sa_handler == on_signal;
}

/// Ronde's handler in place of `former`, of its kind and with its mask.
Action instead_of(const Action& former) {
  Action ours = former;
  if (has_info(former)) {
    ours.sa_sigaction = on_signal_with_info;
  } else {
    ours.sa_handler = on_signal;
    ours.sa_flags &= ~static_cast<int>(SA_SIGINFO);
  }
  ours.sa_flags &= ~static_cast<int>(SA_RESETHAND | SA_NODEFER);
  if (!is_handler(former)) ours.sa_flags |= SA_RESTART;
  return ours;
}

/// Returns false, with errno, where there is no such signal, or it cannot be caught.
bool install(int signal) {
  static auto& found = *new std::deque<Action>;  // handlers may run until the process has ended
  const std::lock_guard lock(mutex);
  Action present = {};
  if (::sigaction(signal, nullptr, &present) != 0) return false;
  const auto place = static_cast<std::size_t>(signal);
  // Set before the handler is installed, which reads them.
  users[place].fetch_add(1);
  if (is_ours(present)) return true;
  const Action* const before = formers[place].exchange(&found.emplace_back(present));
  const Action ours = instead_of(present);
  if (::sigaction(signal, &ours, nullptr) == 0) return true;
  formers[place].store(before);
  users[place].fetch_sub(1);
  return false;
}

void uninstall(int signal) noexcept {
  const std::lock_guard lock(mutex);
  const auto place = static_cast<std::size_t>(signal);
  if (users[place].fetch_sub(1) > 1) return;
  came[place].store(false);
  Action present = {};
  if (::sigaction(signal, nullptr, &present) == 0 && is_ours(present)) {
    static const Action nothing = {};
    ::sigaction(signal, formers[place].load(), nullptr);
    formers[place].store(&nothing);
  }
  // Objects that still exist have to report the request.
  const auto lives = [](const std::atomic<int>& count) { return count.load() > 0; };
  if (std::none_of(users.begin(), users.end(), lives)) requested_ms.store(0);
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& signals, std::string name, ProcessSet set)
    : name_(std::move(name)), set_(set) {
  for (const int signal : signals) {
    if (!install(signal)) {
      const int code = errno;
      release();
      throw UsageError(rank_prefix(set) + "ronde::Checkpoint: stop signal " +
                       std::to_string(signal) + " cannot be caught: " + errno_text(code));
    }
    caught_.push_back(signal);
  }
}

StopSignals::~StopSignals() {
  release();
}

void StopSignals::release() noexcept {
  for (const int signal : caught_) uninstall(signal);
}

bool StopSignals::requested() const noexcept {
  return std::ranges::any_of(
      caught_, [](int signal) { return came[static_cast<std::size_t>(signal)].load(); });
}

bool StopSignals::agreed() {
  if (agreed_) return true;
  if (exchange_) agreed_ = exchange_->wait().item<std::int64_t>() != 0;
  if (agreed_) return true;
  const std::int64_t mine = requested_ms.load() != 0 ? 1 : 0;
  exchange_ = start_max(name_, at::full({1}, mine, at::kLong), set_, {});
  return false;
}

}  // namespace ronde::detail

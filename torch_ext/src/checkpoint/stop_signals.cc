// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/stop_signals.h"

#include <ATen/ops/full.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "core/src/base/system.h"
#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

std::atomic<std::int64_t> requested_ms = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

/// Where a cluster signals a whole step, a rank gets the signal itself and from its launcher.
constexpr std::int64_t kRepeat_ms = 1000;

void request_stop(int signal) {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t now_ms = 1 + now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
  std::int64_t first_ms = 0;
  if (requested_ms.compare_exchange_strong(first_ms, now_ms) || now_ms - first_ms < kRepeat_ms) {
    return;
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& signals, std::string name, ProcessSet set)
    : name_(std::move(name)), set_(set) {
  for (const int signal : signals) {
    struct sigaction action = {};
    struct sigaction former = {};
    action.sa_handler = request_stop;
    action.sa_flags = SA_RESTART;
    if (::sigaction(signal, &action, &former) != 0) {
      const int code = errno;
      restore();
      throw UsageError(rank_prefix() + "ronde::Checkpoint: stop signal " + std::to_string(signal) +
                       " cannot be caught: " + errno_text(code));
    }
    former_.emplace_back(signal, former);
  }
}

StopSignals::~StopSignals() {
  restore();
  if (!former_.empty()) requested_ms.store(0);
}

void StopSignals::restore() const noexcept {
  for (const auto& [signal, former] : former_) ::sigaction(signal, &former, nullptr);
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

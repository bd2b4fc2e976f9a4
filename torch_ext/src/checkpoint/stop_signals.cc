// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/stop_signals.h"

#include <ATen/ops/full.h>

#include <atomic>
#include <cerrno>

#include "core/src/base/system.h"
#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void request_stop(int /*signal*/) {
  stop_requested.store(true, std::memory_order_relaxed);
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& signals, std::string name, ProcessSet set)
    : name_(std::move(name)), set_(set) {
  for (const int signal : signals) {
    struct sigaction action = {};
    struct sigaction former = {};
    action.sa_handler = request_stop;
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    if (::sigaction(signal, &action, &former) != 0) {
      throw UsageError(rank_prefix() + "ronde::Checkpoint: stop signal " + std::to_string(signal) +
                       " cannot be caught: " + errno_text(errno));
    }
    former_.emplace_back(signal, former);
  }
}

StopSignals::~StopSignals() {
  for (const auto& [signal, former] : former_) ::sigaction(signal, &former, nullptr);
  if (!former_.empty()) stop_requested.store(false, std::memory_order_relaxed);
}

bool StopSignals::agreed() {
  if (agreed_) return true;
  if (exchange_) agreed_ = exchange_->wait().item<std::int64_t>() != 0;
  if (agreed_) return true;
  const std::int64_t mine = stop_requested.load(std::memory_order_relaxed) ? 1 : 0;
  exchange_ = start_max(name_, at::full({1}, mine, at::kLong), set_, {});
  return false;
}

}  // namespace ronde::detail

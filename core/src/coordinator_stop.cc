// SPDX-License-Identifier: Apache-2.0
// How a coordinator ends: by agreement, or because the group is dead.
#include <utility>

#include "coordinator.h"
#include "exception_text.h"
#include "rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// How long last messages may take to leave.
constexpr std::chrono::seconds kFlushTime{2};
}  // namespace

FailureMessage Coordinator::departure_of_this_rank() const {
  const std::string how = shutdown_requested_.load() ? " left before its ronde::shutdown() was over"
                                                     : " left without calling ronde::shutdown()";
  const std::lock_guard lock(mutex_);
  const std::string why = leave_reason_.empty() ? "" : ": " + leave_reason_;
  return {tree_.rank(), rank_name(tree_.rank()) + how + why + pending_text()};
}

/// Should the callback return all the same, the loop finds a group that it has left.
void Coordinator::leave_from_within(const std::string& why) noexcept {
  if (std::exchange(has_left_, true) || !tree_.is_open()) return;
  request_leave(why);
  try {
    if (!failure()) static_cast<void>(resolver().settle({departure_of_this_rank()}, true));
    tree_.transport().close(false, Clock::now() + kFlushTime);
  } catch (...) {
    log_->warning("while leaving the group: " + exception_text());
  }
}

FailureResolver Coordinator::resolver() const {
  return {tree_, *log_, pending_text()};
}

void Coordinator::die(const GroupFailure& seen) noexcept {
  const FailureMessage failure = resolver().settle(seen, leave_requested_.load());
  try {
    fail_everything(failure);
  } catch (...) {
    // Nothing above this thread could handle it, and the process must live.
    log_->error("while failing the group: " + exception_text());
  }
  end_anyhow(false);
}

void Coordinator::fail_everything(const FailureMessage& failure) {
  const auto error = std::make_exception_ptr(GroupError(
      failure.rank, failure.text + ". The group is dead: end this process, or start a new job"));
  queue_->close(error);
  {
    const std::lock_guard lock(mutex_);
    failure_ = error;
  }
  if (tree_.is_arbiter() && tree_.size() > 1 && !leave_requested_.load()) log_->error(failure.text);
  fail_operations(running_, schedule_.get(), *queue_, error);
  end_exchanges(error);
}

void Coordinator::stop() {
  if (departure_) throw GroupFailure{*departure_, true};
  try {
    for (SetEngine* set : running_) {
      for (auto& [device, backend] : set->backends) backend->close();
    }
  } catch (...) {
    // The others are ending as well: nobody is to be asked.
    const std::string who = "rank " + std::to_string(tree_.rank());
    throw GroupFailure{{tree_.rank(), who + " cannot close its backend: " + exception_text()},
                       true};
  }
  end(true, Clock::now() + kClosingTime);
}

void Coordinator::end_anyhow(bool graceful) noexcept {
  try {
    end(graceful, Clock::now() + kFlushTime);
  } catch (...) {
    log_->warning("while closing the connections: " + exception_text());
  }
}

void Coordinator::end(bool graceful, Clock::time_point deadline) {
  if (!tree_.is_open()) return;
  queue_->detach();
  queue_->use(nullptr);
  // They are built on those of the CPU, but do not use them any more.
  std::vector<std::unique_ptr<Backend>> of_devices;
  {
    const std::lock_guard lock(mutex_);
    final_stats_ = live_stats();
    running_.clear();
    for (auto& [id, set] : sets_) {
      for (auto& [device, backend] : set->backends) {
        if (device != DeviceKind::Cpu) of_devices.push_back(std::move(backend));
      }
      set->backends.clear();
    }
  }
  end_exchanges(std::make_exception_ptr(UsageError("the group of this rank has ended")));
  const std::unique_ptr<Transport> closing = tree_.release();
  closing->close(graceful, deadline);
}

Stats Coordinator::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = final_stats_ ? *final_stats_ : live_stats();
  for (const auto& part : more_stats_) stats.push_back(part());
  return stats;
}

void Coordinator::add_stats(std::function<StatsGroup()> part) {
  const std::lock_guard lock(mutex_);
  more_stats_.push_back(std::move(part));
}

Stats Coordinator::live_stats() const {
  Stats stats;
  add_engine_stats(queue_->counters(), counters_, stats);
  if (schedule_) add_schedule_stats(schedule_->counters(), stats);
  for (const auto& [id, set] : sets_)
    add_set_stats(*set, backends_.device_streams() != nullptr, stats);
  if (tree_.is_open()) stats.push_back(tree_.transport().stats());
  return stats;
}

}  // namespace ronde

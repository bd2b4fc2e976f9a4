// SPDX-License-Identifier: Apache-2.0
// How a coordinator ends: by agreement, or because the group is dead.
#include <utility>

#include "coordinator.h"
#include "exception_text.h"
#include "rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// A failed backend is often the first sign of a dead peer: how long rank 0 waits for the death
/// itself to show before it blames whoever reported.
constexpr std::chrono::milliseconds kGrace{300};
/// How long a rank waits for rank 0's verdict.
constexpr std::chrono::seconds kVerdictTime{3};
/// How long last messages may take to leave.
constexpr std::chrono::seconds kFlushTime{2};
/// How long what is queued on devices may take to end once the group is dead.
constexpr std::chrono::seconds kDeviceBound{2};
/// How long one of them is waited for before the next one is looked at.
constexpr std::chrono::milliseconds kDeviceTurn{10};

/// A device that hangs may still write there at any time: what owns the memory, which callbacks may
/// as well, is kept for as long as the process lives.
void abandon_buffers(std::vector<Submission>& submissions) {
  static std::mutex mutex;
  static auto* const kKept = new std::vector<Request>();
  const std::lock_guard lock(mutex);
  for (Submission& submission : submissions) {
    kKept->push_back(std::exchange(submission.request, {}));
  }
}

/// What a set of the dead group has begun on a device.
struct DeviceWork {
  std::shared_ptr<DeviceStreams> streams;
  std::vector<Submission>* submissions;
};

/// Waits for the devices: half of the time for what they come to by themselves, as ranks that are
/// well may still do their part, and then without their waits for others, of all sets at once, as
/// work of one may be queued behind that of another.
void bring_to_rest(std::vector<DeviceWork> works) {
  const auto begin = std::chrono::steady_clock::now();
  const auto waited = [&] { return std::chrono::steady_clock::now() - begin; };
  const auto look = [&] {
    std::erase_if(works, [](const DeviceWork& work) {
      const Rest rest = work.streams->settle(kDeviceTurn);
      if (rest == Rest::Unknown) abandon_buffers(*work.submissions);
      return rest != Rest::NotYet;
    });
  };
  while (!works.empty() && 2 * waited() < kDeviceBound) look();
  bool is_last = false;
  while (!works.empty() && !is_last) {
    is_last = waited() >= kDeviceBound;
    for (const DeviceWork& work : works) work.streams->end_waits();
    look();
  }
  for (const DeviceWork& work : works) abandon_buffers(*work.submissions);
}

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
    if (!failure()) static_cast<void>(settle({departure_of_this_rank()}));
    tree_.transport().close(false, Clock::now() + kFlushTime);
  } catch (...) {
    log_->warning("while leaving the group: " + exception_text());
  }
}

FailureMessage Coordinator::settle(const GroupFailure& seen) noexcept {
  try {
    return reach_verdict(seen);
  } catch (...) {
    log_->warning("the other ranks could not be told of the failure: " + exception_text());
    return seen.failure;
  }
}

FailureMessage Coordinator::reach_verdict(const GroupFailure& seen) {
  if (tree_.size() == 1 || !tree_.is_open()) return seen.failure;
  FailureMessage verdict = seen.failure;
  if (!seen.is_verdict) {
    if (tree_.is_arbiter()) {
      verdict = settle_as_arbiter(verdict);
    } else if (leave_requested_.load()) {
      tree_.send_up(verdict);
    } else {
      verdict = ask_for_verdict(verdict);
    }
  }
  verdict.certain = true;
  verdict.in_order = false;
  tree_.send_down(verdict);
  return verdict;
}

FailureMessage Coordinator::loss_of(const Incoming& incoming) const {
  return {incoming.peer,
          rank_name(incoming.peer) + " was lost: " + incoming.bytes + pending_text()};
}

FailureMessage Coordinator::settle_as_arbiter(FailureMessage seen) {
  const Clock::time_point deadline = Clock::now() + kGrace;
  while (!seen.certain && Clock::now() < deadline) {
    const Incoming incoming = tree_.transport().receive(deadline);
    if (incoming.kind == Incoming::Kind::PeerLost) {
      seen = loss_of(incoming);
    } else if (incoming.kind == Incoming::Kind::Message) {
      const Message message = decode(incoming.bytes);
      const auto* failure = std::get_if<FailureMessage>(&message);
      if (failure != nullptr && failure->certain) seen = *failure;
    }
  }
  return seen;
}

/// The leader of a host goes on to pass on what it hears: the cause may be below it.
FailureMessage Coordinator::ask_for_verdict(const FailureMessage& seen) {
  tree_.send_up(seen);
  const Clock::time_point deadline = Clock::now() + kVerdictTime;
  while (Clock::now() < deadline) {
    const Incoming incoming = tree_.transport().receive(deadline);
    const bool from_above = incoming.peer == tree_.parent();
    if (incoming.kind == Incoming::Kind::PeerLost) {
      if (from_above) return loss_of(incoming);
      tree_.send_up(loss_of(incoming));
    }
    if (incoming.kind != Incoming::Kind::Message) continue;
    const Message message = decode(incoming.bytes);
    const auto* failure = std::get_if<FailureMessage>(&message);
    // A departure may have been on its way; it is not the answer.
    if (failure == nullptr || (from_above && failure->in_order)) continue;
    if (from_above) return *failure;
    tree_.send_up(*failure);
  }
  return seen;
}

void Coordinator::die(const FailureMessage& failure) noexcept {
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
  // Backends first: from here on nobody's buffers are touched any more.
  for (SetEngine* set : running_) {
    for (auto& [device, backend] : set->backends) backend->abort();
  }
  const auto fail = [&](std::vector<Submission> submissions) {
    for (Submission& submission : submissions) complete(submission, error, true);
  };
  std::vector<std::vector<Submission>> drained(running_.size());
  std::vector<DeviceWork> on_devices;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    SetEngine& set = *running_[i];
    drained[i] = set.executor->drain();
    if (set.executor->has_begun_on_device()) {
      on_devices.push_back({set.backends.at(DeviceKind::Cuda)->device_streams(), &drained[i]});
    } else {
      fail(std::exchange(drained[i], {}));
    }
  }
  bring_to_rest(std::move(on_devices));
  for (std::vector<Submission>& submissions : drained) fail(std::move(submissions));
  if (schedule_) fail(schedule_->drain());
  for (SetEngine* set : running_) fail(set->announcer->drain());
  fail(queue_->drain());
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

// SPDX-License-Identifier: Apache-2.0
#include "coordinator.h"

#include <algorithm>
#include <thread>
#include <variant>

#include "rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

/// How often the time limits of an operation are looked at while its peers let this rank sleep.
constexpr milliseconds kLongestSleepInOperation{100};
/// The same where nobody would wake it: short against the time that a message needs, once one has
/// taken longer than patience().
constexpr std::chrono::microseconds kPause{50};
/// How long operations are polled before messages are looked at again.
constexpr std::chrono::microseconds kPollSlice{20};
/// How much longer a rank waits than its parent, in shutdown and for stalled operations: whoever is
/// nearer to rank 0 knows better whom to name.
constexpr std::chrono::seconds kHeadStart{2};

std::chrono::nanoseconds from_ms(double ms) {
  return duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double, std::milli>(ms));
}

std::chrono::nanoseconds from_s(double s) {
  return from_ms(std::min(s, 1.0e9) * 1000.0);
}

}  // namespace

Coordinator::Coordinator(RuntimeOptions options)
    : options_(std::move(options)),
      log_(std::make_shared<Logger>(parse_log_level(options_.config.log_level))),
      queue_(std::make_shared<SubmissionQueue>(
          from_ms(options_.config.cycle_time_ms),
          std::max<std::uint64_t>(options_.config.fusion_bytes, 1),
          [this] {
            if (asleep_.load()) transport_->wake();
          })),
      stalls_(options_.config.stall_warn_s, options_.config.stall_abort_s) {}

Coordinator::~Coordinator() = default;

void Coordinator::run() noexcept {
  if (try_start()) live();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool Coordinator::cycle() {
  counters_.cycles.add();
  if (driver_failure_) std::rethrow_exception(driver_failure_);
  receive();
  obey_requests();
  take_submissions();
  negotiate();
  advance_operations();
  conclude();
  inspect();
  return !all_finished_;
}

void Coordinator::receive() {
  for (;;) {
    const Incoming incoming = transport_->poll();
    if (incoming.kind == Incoming::Kind::Nothing) return;
    counters_.messages.add();
    handle(incoming);
  }
}

Coordinator::Clock::time_point Coordinator::next_event() const {
  const Clock::time_point now = Clock::now();
  const bool stopping = shutdown_requested_.load() && announcer_->announced_shutdown() == false;
  const bool ending = stopping || leave_requested_.load() || abort_requested_.load();
  const bool has_news = schedule_ && schedule_->has_news();
  // The last operation may have ended in a look before a sleep.
  const bool concludes = agreed_to_stop_ && !told_finished_ && !executor_->busy();
  const bool is_rung = may_sleep_in_operation();
  const bool may_wait = is_rung || executor_->may_pause();
  const bool is_hot = executor_->busy() && (!may_wait || now < hot_until_);
  if (is_hot || ending || has_news || concludes || driver_failure_ || all_finished_) return now;
  // Far away, and safe to do arithmetic on.
  Clock::time_point next = now + std::chrono::hours(24);
  if (executor_->busy())
    next = now + (is_rung ? Clock::duration(kLongestSleepInOperation) : kPause);
  if (const auto due = queue_->due()) next = std::min(next, *due);
  if (schedule_) {
    if (const auto due = schedule_->due()) next = std::min(next, *due);
  }
  if (const auto deadline = announcer_->next_deadline()) next = std::min(next, *deadline);
  if (shutdown_since_) {
    next = std::min(next,
                    *shutdown_since_ + from_s(options_.config.shutdown_timeout_s) + head_start());
  }
  if (const auto deadline = arbiter_deadline()) next = std::min(next, *deadline);
  if (combiner_) {
    if (const auto deadline = combiner_->next_deadline()) next = std::min(next, *deadline);
  }
  const bool inspects = negotiator_ && !negotiator_->idle() && stalls_.period();
  if (inspects) next = std::min(next, next_inspection_);
  return next;
}

void Coordinator::handle(const Incoming& incoming) {
  if (incoming.kind == Incoming::Kind::Message) {
    const Message message = decode(incoming.bytes);
    if (incoming.peer == parent_) {
      handle_from_above(message, incoming.bytes);
    } else {
      handle_from_below(incoming.peer, message);
    }
    return;
  }
  if (all_finished_) return;  // it closed, as this rank is about to
  throw GroupFailure{loss_of(incoming), incoming.peer == parent_};
}

/// Note [Over the tree].
void Coordinator::handle_from_above(const Message& message, std::string_view bytes) {
  if (!std::holds_alternative<FailureMessage>(message)) send_down(bytes);
  if (std::holds_alternative<FinishedMessage>(message)) {
    all_finished_ = true;
  } else if (const auto* decision = std::get_if<DecisionMessage>(&message)) {
    if (combiner_) combiner_->pass(*decision);
    apply(*decision);
  } else if (const auto* stall = std::get_if<StallMessage>(&message)) {
    if (options_.on_stall) options_.on_stall(stall->operations);
  } else {
    handle_message(parent_, message);
  }
}

void Coordinator::handle_from_below(int peer, const Message& message) {
  const auto* ready = std::get_if<ReadyMessage>(&message);
  if (const auto* finished = std::get_if<FinishedMessage>(&message)) {
    newly_finished_.insert(newly_finished_.end(), finished->ranks.begin(), finished->ranks.end());
  } else if (ready != nullptr && negotiator_) {
    negotiator_->add(peer, *ready, Clock::now());
  } else if (ready != nullptr && combiner_) {
    combiner_->add(peer, *ready, Clock::now());
  } else if (const auto* host = std::get_if<HostReadyMessage>(&message); host && negotiator_) {
    for (const auto& [ranks, part] : host->parts) {
      for (const int rank : ranks) negotiator_->add(rank, part, Clock::now());
    }
  } else {
    handle_message(peer, message);
  }
}

void Coordinator::handle_message(int peer, const Message& message) {
  if (const auto* failure = std::get_if<FailureMessage>(&message)) {
    throw GroupFailure{*failure, peer == parent_};
  }
  throw Error("a control message of " + rank_name(peer) + " came at the wrong time");
}

void Coordinator::obey_requests() {
  const int rank = topology_.rank;
  if (leave_requested_.load()) {
    throw GroupFailure{
        {rank, rank_name(rank) + " left without calling ronde::shutdown()" + pending_text()}};
  }
  if (!abort_requested_.load()) return;
  const std::lock_guard lock(mutex_);
  if (abort_text_) throw GroupFailure{{rank, rank_name(rank) + " aborted: " + *abort_text_}};
}

void Coordinator::take_submissions() {
  const Clock::time_point now = Clock::now();
  const bool shutdown = shutdown_requested_.load();
  if (shutdown && !shutdown_since_) shutdown_since_ = now;
  if (schedule_ && shutdown) schedule_->thaw(FrozenSchedule::Thaw::Shutdown);
  follow_schedule();
  const auto due = queue_->due();
  if (due && (*due <= now || shutdown)) {
    for (Submission& submission : queue_->drain()) announcer_->add(std::move(submission));
  }
  const std::optional<ReadyMessage> ready = announcer_->announce(now, shutdown);
  if (!ready) return;
  counters_.ready_messages.add();
  if (negotiator_) {
    negotiator_->add(topology_.rank, *ready, now);
  } else if (combiner_) {
    combiner_->add(topology_.rank, *ready, now);
  } else {
    send_up(*ready);
  }
}

void Coordinator::negotiate() {
  if (negotiator_) decide();
  if (!combiner_) return;
  if (const auto message = combiner_->take(Clock::now())) send_up(*message);
}

void Coordinator::decide() {
  // What applying a decision announces anew may complete another one.
  while (std::optional<DecisionMessage> decision = negotiator_->decide()) {
    learn(*decision);
    send_down(*decision);
    apply(*decision);
    take_submissions();
  }
  if (const auto departure = negotiator_->departure()) throw GroupFailure{*departure};
}

void Coordinator::apply(const DecisionMessage& decision) {
  counters_.decisions.add();
  AppliedDecision applied = announcer_->apply(decision);
  for (Refused& refused : applied.refused) {
    complete(refused.submission, std::make_exception_ptr(UsageError(refused.text)), true);
  }
  executor_->enqueue(std::move(applied.agreed));
  agreed_to_stop_ = agreed_to_stop_ || applied.shutdown;
  if (!decision.schedule.buckets.empty()) freeze(decision.schedule);
}

void Coordinator::advance_operations() {
  if (!executor_->busy()) return;
  const std::uint64_t before = progress();
  const Clock::time_point slice_end = Clock::now() + kPollSlice;
  while (executor_->busy()) {
    if (!executor_->poll() && Clock::now() >= slice_end) break;
  }
  if (progress() != before) hot_until_ = Clock::now() + patience();
  // Every rank has entered, so polling is right; but where ranks outnumber cores, a peer may need
  // this one to get on.
  if (executor_->busy()) std::this_thread::yield();
}

/// Note [Two agreements to stop].
void Coordinator::conclude() {
  if (agreed_to_stop_ && !told_finished_ && !executor_->busy()) {
    told_finished_ = true;
    newly_finished_.push_back(topology_.rank);
  }
  if (!newly_finished_.empty()) tell_finished();
}

void Coordinator::tell_finished() {
  const FinishedMessage message{std::exchange(newly_finished_, {})};
  if (!is_arbiter()) return send_up(message);
  for (const int rank : message.ranks) finished_.at(static_cast<std::size_t>(rank)) = true;
  if (std::find(finished_.begin(), finished_.end(), false) != finished_.end()) return;
  send_down(FinishedMessage{});
  all_finished_ = true;
}

void Coordinator::inspect() {
  const Clock::time_point now = Clock::now();
  if (schedule_) schedule_->inspect(now);
  if (executor_->busy()) {
    std::optional<Clock::duration> limit;
    if (options_.config.stall_abort_s > 0) limit = from_s(options_.config.stall_abort_s);
    const std::string text = executor_->overdue(now, limit);
    if (!text.empty()) throw GroupFailure{{topology_.rank, text, false}};
  }
  inspect_shutdown(now);
  if (negotiator_) {
    inspect_waiting(now);
  } else {
    inspect_arbiter(now);
  }
}

/// By when rank 0 must have decided what this rank waits for, or have failed the group for it.
std::optional<Coordinator::Clock::time_point> Coordinator::arbiter_deadline() const {
  if (is_arbiter() || options_.config.stall_abort_s <= 0) return std::nullopt;
  const auto oldest = announcer_->oldest_announcement();
  if (!oldest) return std::nullopt;
  return *oldest + from_s(options_.config.stall_abort_s) + head_start();
}

Coordinator::Clock::duration Coordinator::head_start() const {
  if (is_arbiter()) return Clock::duration::zero();
  return parent_ == 0 ? kHeadStart : 2 * kHeadStart;
}

void Coordinator::inspect_arbiter(Clock::time_point now) {
  const auto deadline = arbiter_deadline();
  if (!deadline || now < *deadline) return;
  throw GroupFailure{{parent_, rank_name(parent_) +
                                   " does not answer: it let RONDE_STALL_ABORT_S pass without a "
                                   "word; see whether its process is stopped or hangs" +
                                   pending_text()},
                     true};
}

std::vector<int> Coordinator::unfinished() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < finished_.size(); ++rank) {
    if (!finished_[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void Coordinator::inspect_waiting(Clock::time_point now) {
  const auto period = stalls_.period();
  if (!period || now < next_inspection_ || negotiator_->idle()) return;
  next_inspection_ = now + *period;
  const StallInspector::Finding finding = stalls_.inspect(negotiator_->waiting(), now);
  if (!finding.stalled.empty()) {
    counters_.stall_reports.add();
    log_->warning("stalled operations:\n" + stall_text(finding.stalled));
    send_down(StallMessage{finding.stalled});
    if (options_.on_stall) options_.on_stall(finding.stalled);
  }
  if (finding.fatal) throw GroupFailure{*finding.fatal};
}

void Coordinator::inspect_shutdown(Clock::time_point now) {
  if (negotiator_ && !shutdown_since_ &&
      negotiator_->not_shut_down().size() < static_cast<std::size_t>(topology_.size)) {
    shutdown_since_ = now;  // the first rank of all has called it
  }
  if (!shutdown_since_) return;
  const double timeout_s = options_.config.shutdown_timeout_s;
  const auto waited = now - *shutdown_since_;
  if (all_finished_) return;
  const std::string limit = "within RONDE_SHUTDOWN_TIMEOUT_S of the first rank that did";
  if (negotiator_ && waited >= from_s(timeout_s)) {
    const std::vector<int> missing = agreed_to_stop_ ? unfinished() : negotiator_->not_shut_down();
    if (missing.empty()) return;
    const std::string what = agreed_to_stop_ ? " did not finish the last operations and shut down "
                                             : " did not call shutdown() ";
    throw GroupFailure{{missing.front(), format_ranks(missing) + what + limit}};
  }
  if (!negotiator_ && waited >= from_s(timeout_s) + head_start()) {
    throw GroupFailure{{parent_, rank_name(parent_) + " did not end the shutdown " + limit}, true};
  }
}

void Coordinator::send_up(const Message& message) {
  transport_->send(parent_, encode(message));
}

void Coordinator::send_down(const Message& message) {
  if (!children_.empty()) send_down(encode(message));
}

void Coordinator::send_down(std::string_view bytes) {
  for (const int child : children_) transport_->send(child, bytes);
}

void Coordinator::complete(Submission& submission, std::exception_ptr error, bool contributed) {
  // The name is free, and what owns the buffers let go, before anybody can see the end.
  queue_->release(submission.key);
  submission.request = {};
  submission.work->complete(std::move(error), contributed);
}

std::string Coordinator::pending_text() const {
  constexpr std::size_t kMost = 3;
  std::vector<std::string> names = announcer_->pending_names();
  if (schedule_) {
    const std::vector<std::string> scheduled = schedule_->pending_names();
    names.insert(names.end(), scheduled.begin(), scheduled.end());
  }
  if (names.empty()) return {};
  std::string text = " (" + rank_name(topology_.rank) + " was waiting for ";
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  return text + ")";
}

bool Coordinator::wait_started(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [this] { return started_; })) return false;
  if (start_error_) std::rethrow_exception(start_error_);
  return true;
}

bool Coordinator::wait_ended(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return ended_; });
}

std::exception_ptr Coordinator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Coordinator::request_shutdown() {
  queue_->close(std::make_exception_ptr(
      UsageError("ronde::shutdown() has been called on this rank: no operation can follow it")));
  shutdown_requested_.store(true);
  queue_->wake();
}

void Coordinator::request_leave() {
  queue_->close(std::make_exception_ptr(UsageError("this rank is leaving the group")));
  leave_requested_.store(true);
  // Before the start is over there is nothing to wake; the loop then looks before it waits.
  const std::lock_guard lock(mutex_);
  if (started_ && !start_error_) queue_->wake();
}

void Coordinator::request_abort(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (!abort_text_) abort_text_ = text;
  }
  abort_requested_.store(true);
  queue_->wake();
}

std::string Coordinator::backend_name(DeviceKind device) const {
  const auto found = backend_names_.find(device);
  return found == backend_names_.end() ? std::string() : found->second;
}

}  // namespace ronde

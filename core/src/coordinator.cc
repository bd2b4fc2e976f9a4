// SPDX-License-Identifier: Apache-2.0
#include "coordinator.h"

#include <algorithm>
#include <thread>
#include <variant>

#include "durations.h"
#include "rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using std::chrono::milliseconds;

/// How often the time limits of an operation are looked at while its peers let this rank sleep.
constexpr milliseconds kLongestSleepInOperation{100};
/// The same where nobody would wake it: short against the time that a message needs, once one has
/// taken longer than patience().
constexpr std::chrono::microseconds kPause{50};
/// How long operations are polled before messages are looked at again.
constexpr std::chrono::microseconds kPollSlice{20};
}  // namespace

Coordinator::Coordinator(RuntimeOptions options)
    : options_(std::move(options)),
      log_(std::make_shared<Logger>(parse_log_level(options_.config.log_level))),
      queue_(std::make_shared<SubmissionQueue>(
          from_ms(options_.config.cycle_time_ms),
          std::max<std::uint64_t>(options_.config.fusion_bytes, 1),
          [this] {
            if (asleep_.load()) tree_.transport().wake();
          })),
      start_deadline_(Clock::now() + from_s(options_.config.init_timeout_s)),
      backends_(options_, tree_, *log_),
      global_(*sets_.emplace(kGlobalSet.id, std::make_unique<SetEngine>(SetInfo{})).first->second),
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
  take_exchanges();
  take_submissions();
  negotiate();
  advance_operations();
  conclude();
  inspect();
  return !all_finished_;
}

void Coordinator::receive() {
  for (;;) {
    const Incoming incoming = tree_.transport().poll();
    if (incoming.kind == Incoming::Kind::Nothing) return;
    counters_.messages.add();
    handle(incoming);
  }
}

Coordinator::Clock::time_point Coordinator::next_event() const {
  const Clock::time_point now = Clock::now();
  const bool stopping =
      shutdown_requested_.load() && global_.announcer->announced_shutdown() == false;
  const bool ending = leave_requested_.load() || abort_requested_.load();
  const bool has_news = schedule_ && schedule_->has_news();
  // The last operation may have ended in a look before a sleep.
  const bool is_busy = busy();
  const bool concludes = agreed_to_stop_ && !told_finished_ && !is_busy;
  const bool is_rung = may_sleep_in_operation();
  const bool may_wait = is_rung || may_pause();
  const bool is_hot = is_busy && (!may_wait || now < hot_until_);
  const bool is_asked = stopping || ending || has_news || has_exchanges_.load();
  if (is_hot || is_asked || concludes || driver_failure_ || all_finished_) return now;
  // Far away, and safe to do arithmetic on.
  Clock::time_point next = now + std::chrono::hours(24);
  if (is_busy) next = now + (is_rung ? Clock::duration(kLongestSleepInOperation) : kPause);
  const auto earlier = [&next](std::optional<Clock::time_point> time) {
    if (time) next = std::min(next, *time);
  };
  earlier(queue_->due());
  if (schedule_) earlier(schedule_->due());
  for (const auto& [id, set] : sets_) {
    if (set->announcer) earlier(set->announcer->next_deadline());
    if (set->combiner) earlier(set->combiner->next_deadline());
  }
  earlier(shutdown_deadline());
  earlier(arbiter_deadline());
  earlier(silence_deadline());
  if (stalls_.period() && awaits_anything()) earlier(next_inspection_);
  return next;
}

void Coordinator::handle(const Incoming& incoming) {
  if (incoming.kind == Incoming::Kind::Message) {
    std::optional<Message> message;
    try {
      message = decode(incoming.bytes);
      if (incoming.peer != tree_.parent()) {
        return handle_from_below(incoming.peer, *message, incoming.bytes);
      }
    } catch (const Error& error) {
      throw GroupFailure{{incoming.peer, nonsense_of(incoming.peer, error)}};
    }
    heard_from_above_ = Clock::now();
    return handle_from_above(*message, incoming.bytes);
  }
  if (all_finished_) return;  // it closed, as this rank is about to
  throw GroupFailure{resolver().loss_of(incoming), incoming.peer == tree_.parent()};
}

/// Note [Over the tree].
void Coordinator::handle_from_above(const Message& message, std::string_view bytes) {
  if (std::holds_alternative<FinishedMessage>(message)) {
    tree_.send_down(bytes);
    all_finished_ = true;
  } else if (const auto* decision = std::get_if<DecisionMessage>(&message)) {
    SetEngine& set = engine_of(decision->set);
    tree_.send_to(set.children, bytes);
    if (set.combiner) set.combiner->pass(*decision);
    if (set.announcer) apply(set, *decision);
  } else if (const auto* reply = std::get_if<ExchangeReply>(&message)) {
    const auto exists = [this](int rank) { return tree_.exists(rank); };
    if (!std::all_of(reply->to.begin(), reply->to.end(), exists)) {
      const Error error("it answers a rank that does not exist");
      throw GroupFailure{{tree_.parent(), nonsense_of(tree_.parent(), error)}};
    }
    tree_.send_to(tree_.topology().children_towards(reply->to), bytes);
    handle_reply(*reply);
  } else if (const auto* stall = std::get_if<StallMessage>(&message)) {
    tree_.send_down(bytes);
    if (options_.on_stall) options_.on_stall(stall->operations);
  } else if (const auto* failure = std::get_if<FailureMessage>(&message);
             failure != nullptr && failure->in_order) {
    depart(*failure);
  } else {
    handle_message(tree_.parent(), message);
  }
}

void Coordinator::handle_from_below(int peer, const Message& message, std::string_view bytes) {
  if (const auto* finished = std::get_if<FinishedMessage>(&message)) {
    for (const int rank : finished->ranks) tree_.expect_below(peer, rank);
    newly_finished_.insert(newly_finished_.end(), finished->ranks.begin(), finished->ranks.end());
  } else if (const auto* ready = std::get_if<ReadyMessage>(&message)) {
    if (!sets_.contains(ready->set)) return;  // all its ranks have removed it meanwhile
    SetEngine& set = engine_of(ready->set);
    const int rank = rank_within(set.info.ranks, peer);
    if (rank < 0) {
      throw Error(rank_name(peer) + " announced operations of process set " +
                  std::to_string(ready->set) + ", in which it is not");
    }
    add_ready(set, rank, *ready);
  } else if (const auto* host = std::get_if<HostReadyMessage>(&message);
             host && tree_.is_arbiter()) {
    if (!sets_.contains(host->set)) return;
    SetEngine& set = engine_of(host->set);
    for (const auto& [ranks, part] : host->parts) {
      for (const int rank : ranks) {
        const bool exists = rank >= 0 && rank < set.info.topology.size;
        tree_.expect_below(peer, exists ? set.info.ranks[static_cast<std::size_t>(rank)] : -1);
      }
      set.negotiator->add(ranks, part, Clock::now());
    }
    changed_sets_.insert(host->set);
  } else if (const auto* request = std::get_if<ExchangeRequest>(&message)) {
    tree_.expect_below(peer, request->rank);
    if (tree_.is_arbiter()) return desk_->add(*request, Clock::now());
    tree_.send_up(bytes);
  } else {
    handle_message(peer, message);
  }
}

void Coordinator::handle_message(int peer, const Message& message) {
  if (const auto* failure = std::get_if<FailureMessage>(&message)) {
    throw GroupFailure{*failure, peer == tree_.parent()};
  }
  throw Error("a control message of " + rank_name(peer) + " came at the wrong time");
}

void Coordinator::obey_requests() {
  const int rank = tree_.rank();
  if (leave_requested_.load() && !all_finished_) throw GroupFailure{departure_of_this_rank()};
  if (!abort_requested_.load()) return;
  const std::lock_guard lock(mutex_);
  if (abort_text_) throw GroupFailure{{rank, rank_name(rank) + " aborted: " + *abort_text_}};
}

void Coordinator::take_submissions() {
  const Clock::time_point now = Clock::now();
  const bool is_asked_to = shutdown_requested_.load();
  if (is_asked_to && !shutdown_since_) shutdown_since_ = now;
  const bool shutdown = is_asked_to && !asks_for_sets();
  if (schedule_ && shutdown) schedule_->thaw(FrozenSchedule::Thaw::Shutdown);
  follow_schedule();
  const auto due = queue_->due();
  if (due && (*due <= now || shutdown)) {
    for (Submission& submission : queue_->drain()) {
      member_engine_of(submission.meta.set).announcer->add(std::move(submission));
    }
    // What one of them has thawed comes before a join that is among them.
    follow_schedule();
  }
  for (SetEngine* set : running_) announce(*set, now, shutdown);
}

/// `shutdown`: everything that was submitted before it has been taken.
void Coordinator::announce(SetEngine& set, Clock::time_point now, bool shutdown) {
  std::optional<ReadyMessage> ready = set.announcer->announce(now, shutdown);
  if (!ready) return;
  counters_.ready_messages.add();
  ready->set = set.info.id;
  add_ready(set, set.info.topology.rank, *ready);
}

/// `rank`: within the set.
void Coordinator::add_ready(SetEngine& set, int rank, const ReadyMessage& ready) {
  if (set.negotiator) {
    set.negotiator->add(rank, ready, Clock::now());
    changed_sets_.insert(set.info.id);
  } else if (set.combiner) {
    set.combiner->add(rank, ready, Clock::now());
  } else {
    tree_.send_up(ready);
  }
}

void Coordinator::negotiate() {
  if (tree_.is_arbiter()) return decide();
  for (const auto& [id, set] : sets_) {
    if (!set->combiner) continue;
    auto message = set->combiner->take(Clock::now());
    if (!message) continue;
    message->set = id;
    tree_.send_up(*message);
  }
}

void Coordinator::decide() {
  if (departure_) return;
  answer_exchanges();
  // The last decision of all may have waited for an exchange. What one set decides on may make
  // another's ranks announce something.
  changed_sets_.insert(kGlobalSet.id);
  while (!changed_sets_.empty()) {
    const std::uint32_t id = changed_sets_.extract(changed_sets_.begin()).value();
    if (sets_.contains(id)) decide(*sets_.at(id));
    if (departure_) return;
  }
  if (desk_->idle() || !global_.negotiator->any_shut_down()) return;
  const auto departure =
      departure_of(desk_->waiting(/*for_calls_only=*/true), global_.negotiator->not_shut_down());
  if (departure) depart(*departure);
}

/// Note [Two agreements to stop].
void Coordinator::depart(FailureMessage departure) {
  departure.in_order = true;
  tree_.send_down(departure);
  departure_ = std::move(departure);
  agreed_to_stop_ = true;
}

void Coordinator::decide(SetEngine& set) {
  const bool may_end = set.is_global() && may_stop();
  // What applying a decision announces anew may complete another one.
  while (std::optional<DecisionMessage> decision = set.negotiator->decide(may_end)) {
    decision->set = set.info.id;
    if (const auto warning = set.negotiator->take_warning()) log_->warning(*warning);
    if (set.is_global()) learn(*decision);
    if (!set.children.empty()) tree_.send_to(set.children, encode(*decision));
    if (set.announcer) apply(set, *decision);
    take_submissions();
  }
  if (const auto departure = set.negotiator->departure(); departure && !departure_) {
    depart(*departure);
  }
  if (const auto overflow = set.negotiator->overflow()) throw GroupFailure{*overflow};
}

/// Nothing but the global set stands in the way of the last decision.
bool Coordinator::may_stop() const {
  const bool is_desk_clear = desk_->idle() && !desk_->makes_sets();
  return is_desk_clear && global_.negotiator->all_shut_down() &&
         std::all_of(sets_.begin(), sets_.end(), [](const auto& entry) {
           const SetEngine& set = *entry.second;
           const bool has_ended = set.negotiator->idle() && set.negotiator->all_shut_down();
           return set.is_global() || has_ended;
         });
}

void Coordinator::apply(SetEngine& set, const DecisionMessage& decision) {
  counters_.decisions.add();
  AppliedDecision applied = set.announcer->apply(decision);
  if (log_->enabled(LogLevel::Trace)) {
    log_->trace("decision " + std::to_string(decision.number) + " of process set " +
                std::to_string(set.info.id) + ": " + text_of(applied.agreed) + "; refused: " +
                std::to_string(applied.refused.size()) + (applied.join ? "; all have joined" : "") +
                (applied.shutdown ? "; it is the last" : ""));
  }
  for (Refused& refused : applied.refused) {
    complete(*queue_, refused.submission, std::make_exception_ptr(UsageError(refused.text)), true);
  }
  set.executor->enqueue(std::move(applied.agreed));
  if (applied.join) {
    queue_->continue_numbers(set.info.id, applied.next_unnamed);
    complete(*queue_, *applied.join, nullptr, true);
  }
  agreed_to_stop_ = agreed_to_stop_ || applied.shutdown;
  if (!decision.schedule.buckets.empty()) freeze(decision.schedule);
}

void Coordinator::advance_operations() {
  if (!busy()) return;
  const std::uint64_t before = progress();
  const Clock::time_point slice_end = Clock::now() + kPollSlice;
  while (busy()) {
    bool ended = false;
    for (SetEngine* set : running_) ended = (set->busy() && set->executor->poll()) || ended;
    if (!ended && Clock::now() >= slice_end) break;
  }
  if (progress() != before) {
    hot_until_ = Clock::now() + patience();
  } else if (busy()) {
    // Every rank has entered, so polling is right; but where ranks outnumber cores, a peer may need
    // this one to get on.
    std::this_thread::yield();
  }
}

bool Coordinator::busy() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const SetEngine* set) { return set->busy(); });
}

/// Note [Two agreements to stop].
void Coordinator::conclude() {
  if (agreed_to_stop_ && !told_finished_ && !busy()) {
    for (SetEngine* set : running_) {
      // After a departure they are aborted.
      for (auto& [device, backend] : set->backends) {
        if (!departure_) backend->let_go();
      }
    }
    told_finished_ = true;
    newly_finished_.push_back(tree_.rank());
  }
  if (!newly_finished_.empty()) tell_finished();
}

void Coordinator::tell_finished() {
  const FinishedMessage message{std::exchange(newly_finished_, {})};
  if (!tree_.is_arbiter()) return tree_.send_up(message);
  for (const int rank : message.ranks) finished_.at(static_cast<std::size_t>(rank)) = true;
  if (std::find(finished_.begin(), finished_.end(), false) != finished_.end()) return;
  tree_.send_down(FinishedMessage{});
  all_finished_ = true;
}

std::string Coordinator::pending_text() const {
  std::vector<std::string> names;
  for (const SetEngine* set : running_) {
    const std::vector<std::string> of_set = set->announcer->pending_names();
    names.insert(names.end(), of_set.begin(), of_set.end());
  }
  if (schedule_) {
    const std::vector<std::string> scheduled = schedule_->pending_names();
    names.insert(names.end(), scheduled.begin(), scheduled.end());
  }
  if (names.empty()) return {};
  return " (" + rank_name(tree_.rank()) + " was waiting for " + first_few(names) + ")";
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

void Coordinator::wait_loop_ended(Clock::duration limit) {
  std::unique_lock lock(mutex_);
  const auto has_ended = [this] { return loop_ended_ || ended_; };
  if (limit > Clock::duration::zero()) {
    changed_.wait_for(lock, limit, has_ended);
  } else {
    changed_.wait(lock, has_ended);
  }
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

void Coordinator::request_leave(const std::string& why) {
  queue_->close(std::make_exception_ptr(UsageError("this rank is leaving the group")));
  const std::lock_guard lock(mutex_);
  if (leave_reason_.empty()) leave_reason_ = why;
  leave_requested_.store(true);
  // Before the start is over there is nothing to wake; the loop then looks before it waits.
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

}  // namespace ronde

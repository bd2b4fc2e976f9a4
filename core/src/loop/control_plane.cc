// SPDX-License-Identifier: Apache-2.0
// The functions follow docs/protocol.md in its order.
#include "core/src/loop/control_plane.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <list>
#include <mutex>
#include <set>
#include <utility>
#include <variant>

#include "core/src/base/monotonic_clock.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {

ControlPlane::ControlPlane(const RuntimeOptions& options, const Logger& log,
                           const ControlTree& tree, SubmissionQueue& queue, const EngineLife& life)
    : options_(options),
      log_(log),
      tree_(tree),
      queue_(queue),
      life_(life),
      stall_limit_(options_.config.stall_abort_s),
      reported_limit_(stall_limit_.get().value_or(Duration::zero())),
      sets_(options_.config, tree_, log_, queue_),
      exchanges_(queue_) {}

void ControlPlane::start(Board* board) {
  if (board != nullptr)
    schedule_ = make_schedule(options_.config, tree_.rank(), tree_.size(), *board, queue_, log_);
  if (tree_.is_arbiter()) {
    arbiter_.emplace(options_, tree_, sets_, log_, schedule_.get(), stall_limit_);
  }
  sets_.start_global();
}

std::optional<TimePoint> ControlPlane::next_event(TimePoint now, bool is_busy) const {
  const bool stopping = life_.shuts_down() && !sets_.global().announcer->announced_shutdown();
  const bool ending = life_.leaves() || life_.aborts();
  const bool has_news =
      exchanges_.has_news() || std::ranges::any_of(sets_.running(), [](const SetEngine* set) {
        return set->executor->has_checksums();
      });
  const Autotuner* const tuner = arbiter_ ? arbiter_->autotuner() : nullptr;
  const bool tunes = tuner != nullptr && tuner->active() && tuner->has_steps();
  const bool concludes = stop_.must_report_finished(is_busy);
  if (stopping || ending || has_news || tunes || concludes || stop_.all_finished) return now;
  std::optional<TimePoint> next = earlier(queue_.due(), shutdown_limit());
  for (const auto& [id, set] : sets_.all()) {
    if (set->announcer) next = earlier(next, set->announcer->next_deadline());
    if (set->combiner) next = earlier(next, set->combiner->next_deadline());
  }
  if (arbiter_) return earlier(next, arbiter_->next_inspection(stop_));
  const std::optional<TimePoint> awaited = this->awaited();
  return earlier(next, earlier(answer_deadline(awaited), silence_deadline(awaited)));
}

/// Stops at the end: from then on peers close their connections, which is no failure.
void ControlPlane::receive(TimePoint now) {
  while (!stop_.all_finished) {
    const Incoming incoming = tree_.transport().poll();
    if (incoming.kind == Incoming::Kind::Nothing) break;
    counters_.messages.add();
    handle(incoming, now);
  }
  const bool leaves = life_.leaves() && !stop_.all_finished;
  if (leaves || life_.aborts()) throw GroupFailure{departure_of_this_rank()};
}

void ControlPlane::handle(const Incoming& incoming, TimePoint now) {
  if (incoming.kind == Incoming::Kind::Message) {
    std::optional<Message> message;
    try {
      message = decode(incoming.bytes);
      if (incoming.peer != tree_.parent()) {
        return handle_from_below(incoming.peer, *message, incoming.bytes, now);
      }
    } catch (const Error& error) {
      throw GroupFailure{{incoming.peer, nonsense_of(incoming.peer, error)}};
    }
    last_message_ = now;
    return handle_from_above(*message, incoming.bytes, now);
  }
  throw GroupFailure{resolver().loss_of(incoming), incoming.peer == tree_.parent()};
}

void ControlPlane::fail_by_nonsense_from_above(const char* what) const {
  throw GroupFailure{{tree_.parent(), nonsense_of(tree_.parent(), Error(what))}};
}

/// Note [Over the tree].
void ControlPlane::handle_from_above(const Message& message, std::string_view bytes,
                                     TimePoint now) {
  if (std::holds_alternative<FinishedMessage>(message)) {
    tree_.send_down(bytes);
    stop_.all_finished = true;
  } else if (const auto* decision = std::get_if<DecisionMessage>(&message)) {
    SetEngine& set = sets_.at(decision->set);
    tree_.send_to(set.children, bytes);
    if (set.combiner) set.combiner->pass(*decision);
    if (set.announcer) apply(set, *decision, now);
  } else if (const auto* reply = std::get_if<ExchangeReply>(&message)) {
    if (!std::ranges::all_of(reply->to, [this](int rank) { return tree_.exists(rank); })) {
      fail_by_nonsense_from_above("it answers a rank that does not exist");
    }
    tree_.send_to(tree_.topology().children_towards(reply->to), bytes);
    handle_reply(*reply);
  } else if (const auto* stall = std::get_if<StallMessage>(&message)) {
    const auto exist = [this](const RankRanges& ranks) {
      return ranks.empty() || tree_.exists(ranks.back().last);
    };
    for (const StalledOperation& operation : stall->operations) {
      if (exist(operation.submitted_ranks) && exist(operation.missing_ranks)) continue;
      fail_by_nonsense_from_above("it reports a stall of a rank that does not exist");
    }
    tree_.send_down(bytes);
    if (options_.on_stall) options_.on_stall(stall->operations);
  } else if (const auto* limit = std::get_if<StallLimitMessage>(&message)) {
    if (options_.stall_slack) stall_limit_.raise(Duration(limit->ns));
    reported_limit_ = std::max(reported_limit_, Duration(limit->ns));
    tree_.send_down(bytes);
  } else if (const auto* failure = std::get_if<FailureMessage>(&message);
             failure != nullptr && failure->in_order) {
    announce_departure(*failure);
  } else {
    handle_message(tree_.parent(), message);
  }
}

void ControlPlane::handle_from_below(int peer, const Message& message, std::string_view bytes,
                                     TimePoint now) {
  if (const auto* finished = std::get_if<FinishedMessage>(&message)) {
    if (finished->ranks.size() != finished->reports.size()) throw Error("reports are missing");
    for (std::size_t i = 0; i < finished->ranks.size(); ++i) {
      tree_.expect_below(peer, finished->ranks[i]);
      stop_.add_finished(finished->ranks[i], finished->reports[i]);
    }
  } else if (const auto* host = std::get_if<HostReadyMessage>(&message)) {
    add_from_below(peer, *host, now);
  } else if (const auto* results = std::get_if<ResultsMessage>(&message)) {
    tree_.expect_below(peer, results->rank);
    if (arbiter_) return compare(*results);
    tree_.send_up(bytes);
  } else if (const auto* request = std::get_if<ExchangeRequest>(&message)) {
    tree_.expect_below(peer, request->rank);
    if (arbiter_) return arbiter_->add(*request, now);
    tree_.send_up(bytes);
  } else if (const auto* limit = std::get_if<StallLimitMessage>(&message)) {
    if (options_.stall_slack) stall_limit_.raise(Duration(limit->ns));
  } else {
    handle_message(peer, message);
  }
}

void ControlPlane::add_from_below(int peer, const HostReadyMessage& host, TimePoint now) {
  if (!sets_.contains(host.set)) return;  // all its ranks have removed it meanwhile
  SetEngine& set = sets_.at(host.set);
  for (const auto& [ranks, part] : host.parts) {
    for (const int rank : ranks) {
      const bool exists = rank >= 0 && rank < set.info.topology.size;
      tree_.expect_below(peer, exists ? set.info.ranks[static_cast<std::size_t>(rank)] : -1);
    }
    if (!ranks.empty()) add_ready(set, ranks, part, now);
  }
}

void ControlPlane::handle_message(int peer, const Message& message) {
  if (const auto* failure = std::get_if<FailureMessage>(&message)) {
    throw GroupFailure{*failure, peer == tree_.parent() && !failure->overdue};
  }
  throw Error("unexpected control message of " + rank_name(peer));
}

void ControlPlane::on_step() {
  Autotuner* const tuner = arbiter_ ? arbiter_->autotuner() : nullptr;
  if (tuner == nullptr || !tuner->active()) return;
  tuner->record_step(MonotonicClock::now());
  queue_.wake();
}

void ControlPlane::collect(TimePoint now) {
  if (arbiter_ && arbiter_->must_thaw_to_tune(now)) schedule_->thaw(FrozenSchedule::Thaw::Tuning);
  send_checksums();  // before an exchange removes a set
  start_exchanges(now);
  announce_submissions(now);
}

/// Note [Verifying results].
void ControlPlane::send_checksums() {
  for (const SetEngine* set : sets_.running()) {
    if (!set->executor->has_checksums()) continue;
    const ResultsMessage results{set->info.id, tree_.rank(), set->executor->take_checksums()};
    if (arbiter_) {
      compare(results);
    } else {
      tree_.send_up(results);
    }
  }
}

void ControlPlane::compare(const ResultsMessage& results) {
  const SetEngine& set = sets_.at(results.set);
  if (!set.results) throw Error("it verifies results, which rank 0 does not");
  const auto difference = set.results->add(results);
  if (!difference_) difference_ = difference;
}

void ControlPlane::expect_same_results() const {
  if (difference_) throw GroupFailure{*difference_};
}

/// On every rank at the same decision, so that all plan its buckets, and those of later ones in
/// every process set, alike.
void ControlPlane::apply_tuning(const Tuning& tuning) {
  follow_schedule();  // what was committed before runs with the settings of before
  sets_.set_fusion_bytes(tuning.fusion_bytes);
  queue_.gather(from_ms(tuning.cycle_time_ms), std::max<std::uint64_t>(tuning.fusion_bytes, 1));
  counters_.fusion_bytes.set(tuning.fusion_bytes);
  counters_.cycle_time_us.set(static_cast<std::uint64_t>(std::lround(1e3 * tuning.cycle_time_ms)));
  counters_.freeze_after_steps.set(tuning.freeze_after_steps);
  counters_.tunings.add();
}

void ControlPlane::start_exchanges(TimePoint now) {
  if (!exchanges_.has_news()) return;
  const auto busy = [this](std::uint32_t set) {
    return sets_.contains(set) && sets_.at(set).busy();
  };
  for (const std::shared_ptr<OwnExchange>& own : exchanges_.take(busy, now)) {
    if (own->parts.info) sets_.install(std::exchange(own->parts, {}));
    if (arbiter_) {
      arbiter_->add(own->request, now);
    } else {
      tree_.send_up(own->request);
    }
  }
}

void ControlPlane::handle_reply(const ExchangeReply& reply) {
  if (!reply.members.empty()) sets_.add(reply);
  const ExchangeKind kind = reply.key.kind;
  const bool failed = !reply.error.empty();
  const bool is_gone = kind == (failed ? ExchangeKind::FinishSet : ExchangeKind::RemoveSet);
  if (kind == ExchangeKind::FinishSet && !failed) counters_.sets_made.add();
  if (kind == ExchangeKind::RemoveSet && !failed) counters_.sets_removed.add();
  exchanges_.finish(reply, tree_.rank(), is_gone ? sets_.remove(reply.key.set) : MadeSet());
}

void ControlPlane::announce_submissions(TimePoint now) {
  const bool is_asked_to = life_.shuts_down();
  if (is_asked_to && !stop_.shutdown_since) stop_.shutdown_since = now;
  const bool shutdown = is_asked_to && !exchanges_.asks_for_sets();
  if (schedule_ && shutdown) schedule_->thaw(FrozenSchedule::Thaw::Shutdown);
  // Submissions that a thaw returns are announced with the join that caused it, or before.
  std::list<Submission> taken;
  do {
    follow_schedule();
    taken = queue_.take(shutdown ? TimePoint::max() : now);
    for (Submission& submission : taken) {
      sets_.at(submission.spec().set).announcer->add(std::move(submission));
    }
  } while (!taken.empty());
  report_stall_limit();
  for (SetEngine* set : sets_.running()) {
    if (shutdown || !set->announcer->idle()) announce(*set, now, shutdown);
  }
}

/// Reports a limit that the program, or a rank below this one, has raised: to rank 0, from there to
/// all.
void ControlPlane::report_stall_limit() {
  const std::optional<Duration> limit = stall_limit_.get();
  if (!limit || *limit <= reported_limit_) return;
  reported_limit_ = *limit;
  const StallLimitMessage message{limit->count()};
  arbiter_ ? tree_.send_down(message) : tree_.send_up(message);
}

void ControlPlane::follow_schedule() {
  if (!schedule_) return;
  FrozenSchedule::Next next;
  do {
    next = schedule_->take();
    sets_.global().executor->enqueue_bucket(std::move(next.bucket), next.is_group);
  } while (!next.is_last);
  if (!next.remains) return;
  FrozenSchedule::Remains& remains = *next.remains;
  const std::string reason = FrozenSchedule::text_of(remains.reason);
  queue_.events().write({.time_ns = EventLog::now_ns(), .kind = EventKind::Thawed}, reason);
  log_.debug("thawed the schedule (rounds: " + std::to_string(remains.rounds) + "): " + reason +
             (remains.cause.empty() ? ", on another rank" : "; here: " + remains.cause));
  queue_.hand_over([&] { return std::move(remains.submissions); });
  if (arbiter_) arbiter_->on_thaw(remains.reason, remains.rounds);
}

void ControlPlane::freeze(const ScheduleMessage& message, TimePoint now) {
  if (!schedule_) throw Error("rank 0 freezes a schedule, but this rank shares no memory with it");
  Announcer& announcer = *sets_.global().announcer;
  FrozenSchedule::Plan plan = FrozenSchedule::plan_of(message, announcer);
  if (log_.enabled(LogLevel::Debug)) {
    std::size_t operations = 0;
    for (const auto& bucket : plan.buckets) operations += bucket.size();
    log_.debug("froze a schedule; operations: " + std::to_string(operations) +
               ", buckets: " + std::to_string(plan.buckets.size()) +
               ", patience: " + std::to_string(message.patience_ms) + " ms");
  }
  queue_.events().write({.time_ns = EventLog::now_ns(), .kind = EventKind::Frozen});
  // Announcements of the next round end with the negotiation: rank 0 forgets them, too.
  queue_.hand_over([&] {
    schedule_->freeze(std::move(plan), now);
    return announcer.drain();
  });
}

/// `shutdown`: this rank has taken everything that was submitted before shutdown().
void ControlPlane::announce(SetEngine& set, TimePoint now, bool shutdown) {
  std::optional<ReadyMessage> ready = set.announcer->announce(now, shutdown);
  if (!ready) return;
  counters_.ready_messages.add();
  if (const auto limit = life_.shutdown_deadline(); limit && ready->shutdown) {
    ready->shutdown_ns = std::max<std::int64_t>((*limit - now).count(), 1);
  }
  add_ready(set, {set.info.topology.rank}, *ready, now);
}

/// `ranks`: within the set; this one, or some below it.
void ControlPlane::add_ready(SetEngine& set, const Negotiator::Ranks& ranks,
                             const ReadyMessage& ready, TimePoint now) {
  if (set.negotiator) {
    set.negotiator->add(ranks, ready, now);
    arbiter_->changed_sets().insert(set.info.id);
  } else if (set.combiner) {
    set.combiner->add(ranks, ready, now);
  } else {
    HostReadyMessage message;
    message.set = set.info.id;
    message.parts.push_back({ranks, ready});  // an initialiser list would copy it once more
    tree_.send_up(message);
  }
}

void ControlPlane::agree(TimePoint now) {
  if (arbiter_) return decide(now);
  for (const auto& [id, set] : sets_.all()) {
    if (!set->combiner) continue;
    auto message = set->combiner->take(now);
    if (!message) continue;
    message->set = id;
    tree_.send_up(*message);
  }
}

void ControlPlane::decide(TimePoint now) {
  if (stop_.departure || arbiter_->changed_sets().empty()) return;
  for (const ExchangeReply& reply : arbiter_->take_replies()) {
    tree_.send_to(tree_.topology().children_towards(reply.to), encode(reply));
    handle_reply(reply);
  }
  // The last decision of all may have waited for an exchange, or for another set. The decision of
  // one set may make ranks of another announce something.
  std::set<std::uint32_t>& changed = arbiter_->changed_sets();
  changed.insert(kGlobalSet.id);
  while (!changed.empty()) {
    const std::uint32_t id = changed.extract(changed.begin()).value();
    if (sets_.contains(id)) decide(sets_.at(id), now);
    if (stop_.departure) return;
    if (id != kGlobalSet.id) changed.insert(kGlobalSet.id);
  }
  if (auto departure = arbiter_->departure()) announce_departure(*std::move(departure));
}

void ControlPlane::decide(SetEngine& set, TimePoint now) {
  const bool may_stop = set.is_global() && arbiter_->may_stop();
  // Applying a decision may announce operations again, which may complete another decision.
  while (const std::optional<DecisionMessage> decision = arbiter_->decide(set, may_stop, now)) {
    expect_same_results();
    if (!set.children.empty()) tree_.send_to(set.children, encode(*decision));
    if (set.announcer) apply(set, *decision, now);
    announce_submissions(now);
  }
  const auto departure = set.negotiator->departure();
  if (departure && !stop_.departure) announce_departure(*departure);
  if (const auto overflow = set.negotiator->overflow()) throw GroupFailure{*overflow};
}

/// Note [Two agreements to stop].
void ControlPlane::announce_departure(FailureMessage departure) {
  departure.in_order = true;
  tree_.send_down(departure);
  stop_.departure = std::move(departure);
  stop_.agreed = true;
}

void ControlPlane::apply(SetEngine& set, const DecisionMessage& decision, TimePoint now) {
  counters_.decisions.add();
  if (decision.tuning) apply_tuning(*decision.tuning);
  AppliedDecision applied = set.announcer->apply(decision);
  if (log_.enabled(LogLevel::Trace)) {
    log_.trace("decision " + std::to_string(decision.number) + " of process set " +
               std::to_string(set.info.id) + ": " + text_of(applied.agreed) + "; refused: " +
               std::to_string(applied.refused.size()) + (applied.join ? "; all have joined" : "") +
               (applied.shutdown ? "; it is the last" : ""));
  }
  for (Refused& refused : applied.refused) {
    const auto error = refused.missing.empty()
                           ? std::make_exception_ptr(UsageError(refused.text))
                           : std::make_exception_ptr(TimeoutError(refused.text, refused.missing));
    complete(queue_, refused.submission, error, true);
  }
  set.executor->enqueue(std::move(applied.agreed));
  if (applied.join) {
    queue_.names()->continue_numbers(set.info.id, applied.next_unnamed);
    complete(queue_, *applied.join, nullptr, true);
  }
  stop_.agreed = stop_.agreed || applied.shutdown;
  if (!decision.schedule.buckets.empty()) freeze(decision.schedule, now);
}

/// Note [Two agreements to stop].
void ControlPlane::report_ends(bool is_busy) {
  send_checksums();
  if (stop_.must_report_finished(is_busy)) {
    for (SetEngine* set : sets_.running()) {
      // After a departure they are aborted.
      for (auto& [device, backend] : set->backends) {
        if (!stop_.departure) backend->release_peer_memory();
      }
    }
    stop_.reported_finished = true;
    stop_.add_finished(tree_.rank(), life_.report());
  }
  if (stop_.newly_finished.ranks.empty()) return;
  const FinishedMessage message = std::exchange(stop_.newly_finished, {});
  if (!arbiter_) return tree_.send_up(message);
  for (std::size_t i = 0; i < message.ranks.size(); ++i) {
    stop_.reports[message.ranks[i]] = message.reports[i];
  }
  if (std::ssize(stop_.reports) < tree_.size()) return;
  expect_same_results();
  tree_.send_down(FinishedMessage{});
  stop_.all_finished = true;
}

void ControlPlane::inspect(TimePoint now) {
  if (schedule_) schedule_->inspect(now);
  inspect_shutdown(now);
  if (!arbiter_) return inspect_arbiter(now);
  const StallInspector::Finding finding = arbiter_->inspect(stop_, now);
  if (!finding.stalled.empty()) {
    counters_.stall_reports.add();
    log_.warning("stalled operations:\n" + stall_text(finding.stalled));
    publish_stalls(finding.stalled);
  }
  if (finding.fatal) throw GroupFailure{*finding.fatal};
}

/// Returns when the shutdown has taken too long for this rank; on rank 0, for any.
std::optional<TimePoint> ControlPlane::shutdown_limit() const {
  std::optional<TimePoint> limit = life_.shutdown_deadline();
  if (limit) *limit += tree_.depth() * kHeadStart;
  return arbiter_ ? earlier(limit, sets_.global().negotiator->shutdown_limit()) : limit;
}

void ControlPlane::inspect_shutdown(TimePoint now) {
  const bool has_begun = arbiter_ && sets_.global().negotiator->any_shut_down();
  if (has_begun && !stop_.shutdown_since) stop_.shutdown_since = now;
  const auto deadline = shutdown_limit();
  if (!deadline || now < *deadline || stop_.all_finished) return;
  if (arbiter_) return arbiter_->blame_for_shutdown(stop_);
  throw GroupFailure{
      {tree_.parent(), rank_name(tree_.parent()) + " did not end the shutdown" + kShutdownLimit},
      true};
}

void ControlPlane::publish_stalls(const std::vector<StalledOperation>& stalled) const {
  tree_.send_down(StallMessage{stalled});
  if (options_.on_stall) options_.on_stall(stalled);
}

void ControlPlane::inspect_arbiter(TimePoint now) {
  const std::optional<TimePoint> awaited = this->awaited();
  const auto warns = silence_deadline(awaited);
  if (warns && now >= *warns) {
    warned_ = now;
    StalledOperation stalled;
    stalled.text = "an answer of " + rank_name(tree_.parent());
    stalled.kind = Collective::Barrier;
    stalled.submitted_ranks = ranges_of({tree_.rank()});
    stalled.missing_ranks = ranges_of({tree_.parent()});
    stalled.waiting =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - *silent_since(awaited));
    log_.warning(rank_name(tree_.parent()) + " has sent nothing for " +
                 std::to_string(stalled.waiting.count() / 1000) +
                 " s: see whether its process is stopped or hangs" + pending_text());
    // The children receive it as a stall, and so do not report the same of this rank.
    publish_stalls({stalled});
  }
  const auto deadline = answer_deadline(awaited);
  if (!deadline || now < *deadline) return;
  throw GroupFailure{
      {tree_.parent(), rank_name(tree_.parent()) +
                           " does not answer: it sent nothing within RONDE_STALL_ABORT_S; see "
                           "whether its process is stopped or hangs" +
                           pending_text()},
      true};
}

std::optional<TimePoint> ControlPlane::awaited() const {
  std::optional<TimePoint> oldest = exchanges_.oldest();
  for (const SetEngine* set : sets_.running()) {
    oldest = earlier(oldest, set->announcer->oldest_announcement());
  }
  return oldest;
}

/// Returns the time since which this rank has waited, also for the end of the shutdown, and nothing
/// has come from above.
std::optional<TimePoint> ControlPlane::silent_since(std::optional<TimePoint> awaited) const {
  if (options_.config.stall_warn_s <= 0) return std::nullopt;
  const std::optional<TimePoint> since = awaited ? awaited : stop_.shutdown_since;
  return since ? std::optional(std::max(*since, last_message_)) : std::nullopt;
}

/// Returns when to warn of rank 0's silence: it would have reported a stall by then.
std::optional<TimePoint> ControlPlane::silence_deadline(std::optional<TimePoint> awaited) const {
  const auto since = silent_since(awaited);
  if (!since) return std::nullopt;
  const auto period = from_s(options_.config.stall_warn_s);
  return std::max(*since + period + tree_.depth() * kHeadStart, warned_ + period);
}

/// Returns the time by which rank 0 must have decided what this rank waits for, or have failed the
/// group.
std::optional<TimePoint> ControlPlane::answer_deadline(std::optional<TimePoint> awaited) const {
  const std::optional<Duration> limit = stall_limit_.get();
  if (!limit || !awaited) return std::nullopt;
  return *awaited + *limit + tree_.depth() * kHeadStart;
}

std::string ControlPlane::pending_text() const {
  std::vector<std::string> names;
  for (const SetEngine* set : sets_.running()) {
    std::ranges::move(set->announcer->pending_names(), std::back_inserter(names));
  }
  if (schedule_) std::ranges::move(schedule_->pending_names(), std::back_inserter(names));
  if (names.empty()) return {};
  return " (" + rank_name(tree_.rank()) + " was waiting for " + first_few(names) + ")";
}

namespace {

/// Time limit for work that is queued on devices when the group has failed.
constexpr std::chrono::seconds kDeviceBound{2};
/// How long one device is waited for before the next one is checked.
constexpr std::chrono::milliseconds kDeviceTurn{10};

/// Keeps the owners of the memory, and callbacks, until the process ends, as a device that hangs
/// may still write there at any time.
void abandon_buffers(std::vector<Submission>& submissions) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<Start>();
  const std::lock_guard lock(mutex);
  for (Submission& submission : submissions) {
    kept.push_back(std::exchange(submission.start, {}));
  }
}

/// The work that a set of the failed group has begun on a device.
struct DeviceWork {
  std::shared_ptr<DeviceStreams> streams;
  std::vector<Submission>* submissions;
};

/// Waits for the devices of all sets at once, as work of one may be queued behind that of another.
/// The first half of the time lets work end by itself, as healthy ranks may still do their part;
/// then its waits for other ranks are cancelled.
void drain_devices(std::vector<DeviceWork> works) {
  const auto begin = MonotonicClock::now();
  const auto waited = [&] { return MonotonicClock::now() - begin; };
  const auto drain = [&] {
    std::erase_if(works, [](const DeviceWork& work) {
      const DrainStatus status = work.streams->drain(kDeviceTurn);
      if (status == DrainStatus::Unknown) abandon_buffers(*work.submissions);
      return status != DrainStatus::NotYet;
    });
  };
  while (!works.empty() && 2 * waited() < kDeviceBound) drain();
  bool is_last = false;
  while (!works.empty() && !is_last) {
    is_last = waited() >= kDeviceBound;
    for (const DeviceWork& work : works) work.streams->cancel_waits();
    drain();
  }
  for (const DeviceWork& work : works) abandon_buffers(*work.submissions);
}

void abandon(Submission& submission) {
  submission.is_abandoned = true;
  for (Submission& member : submission.members) abandon(member);
}

}  // namespace

void ControlPlane::fail(const std::exception_ptr& error) {
  const std::vector<SetEngine*>& sets = sets_.running();
  // Backends first: from here on no buffer of the program is accessed.
  for (SetEngine* set : sets) {
    for (auto& [device, backend] : set->backends) backend->abort();
  }
  const auto fail = [&](auto submissions) {
    for (Submission& submission : submissions) {
      abandon(submission);
      complete(queue_, submission, error, true);
    }
  };
  std::vector<std::vector<Submission>> drained(sets.size());
  std::vector<DeviceWork> on_devices;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    SetEngine& set = *sets[i];
    drained[i] = set.executor->drain();
    if (set.executor->has_begun_on_device()) {
      on_devices.push_back({set.backends.at(DeviceKind::Cuda)->device_streams(), &drained[i]});
    } else {
      fail(std::exchange(drained[i], {}));
    }
  }
  drain_devices(std::move(on_devices));
  for (std::vector<Submission>& submissions : drained) fail(std::move(submissions));
  if (schedule_) fail(schedule_->drain());
  for (SetEngine* set : sets) fail(set->announcer->drain());
  fail(queue_.take(TimePoint::max()));
  exchanges_.end(error);
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "core/src/engine/engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/src/base/exception_text.h"
#include "core/src/base/rank_list.h"
#include "core/src/config/durations.h"
#include "core/src/submit/engine_scope.h"
#include "core/src/tune/tuned_values.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Time limit for the last messages to be sent.
constexpr std::chrono::seconds kFlushTime{2};

/// Pins this thread to the core that RONDE_THREAD_AFFINITY gives to this rank, if any.
void pin_thread(const Config& config, const Topology& topology, const Logger& log) {
  const auto core = affinity_core(config, topology.local_rank, topology.local_size);
  if (!core) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(*core), &cores);
  const int code = pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  if (code == 0) return;
  log.warning("RONDE_THREAD_AFFINITY: the coordinator cannot run on core " + std::to_string(*core) +
              " (" + std::strerror(code) + "); it stays unpinned");
}

}  // namespace

Engine::Engine(RuntimeOptions options)
    : options_(std::move(options)),
      log_(std::make_shared<Logger>(parse_log_level(options_.config.log_level))),
      events_(std::make_shared<EventLog>(options_.config.events, log_, options_.on_event)),
      made_(Clock::now()),
      start_deadline_(Clock::now() + from_s(options_.config.init_timeout_s)),
      queue_(
          from_ms(options_.config.cycle_time_ms),
          std::max<std::uint64_t>(options_.config.fusion_bytes, 1),
          [this] {
            if (driver_.wants_wake()) tree_.transport().wake();
          },
          *events_),
      backends_(options_, tree_, *log_),
      coordinator_(options_, *log_, tree_, queue_, life_, counters_),
      driver_(coordinator_, tree_, queue_, counters_) {}

void Engine::run() noexcept {
  if (try_start()) live();
  life_.note_ended();
}

bool Engine::try_start() noexcept {
  try {
    start();
  } catch (...) {
    // Reported before the transport closes, as that may wait for the others.
    life_.note_started(std::current_exception());
    end_anyhow(bootstrap_ && bootstrap_->is_refused());
    return false;
  }
  life_.note_started();
  return true;
}

void Engine::start() {
  tree_.open(options_.make_transport());
  bootstrap_.emplace(tree_, std::min(start_deadline_, tree_.transport().start_deadline()));
  transport_name_ = tree_.transport().name();
  log_->set_rank(tree_.rank());
  log_connections();
  const Topology& topology = tree_.topology();
  SetEngine& global = coordinator_.sets().global();
  std::vector<int> everybody(static_cast<std::size_t>(tree_.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  global.info = make_set_info(kGlobalSet.id, std::move(everybody), true, topology);
  bootstrap_->compare_configurations(options_);
  adopt_tuned();
  make_board();
  if (board_) coordinator_.schedule().start(options_.config, tree_, *board_);
  backends_.make_for_all(global, board_.get(), *bootstrap_);
  pin_thread(options_.config, topology, *log_);
  if (tree_.is_arbiter() && !options_.effective_config.empty()) {
    log_->info(options_.effective_config);
  }
  if (topology.host_of.at(static_cast<std::size_t>(tree_.rank())) != topology.host_of.at(0)) {
    events_->follow_clock();
  }
  const bool outnumbers_cores = topology.local_size > topology.local_cores;
  coordinator_.start(board_ != nullptr, outnumbers_cores);
  table_.insert(std::make_shared<SetInfo>(global.info));
  driver_.start(board_.get(), coordinator_.schedule().schedule(), outnumbers_cores);
  submitter_.emplace(topology, table_, queue_, backends_.symmetric_heap(),
                     backends_.device_streams(), weak_from_this(), log_);
  const ProcessSetMaker::Dependencies parts{tree_,  table_,  backends_, coordinator_.exchanges(),
                                            queue_, driver_, life_};
  set_maker_.emplace(parts, weak_from_this(), log_);
}

/// All ranks take the values that rank 0 names, so that they cannot differ.
void Engine::adopt_tuned() {
  if (options_.config.tuned.empty()) return;
  std::string values;
  if (tree_.is_arbiter()) values = tuned_values(options_, tree_.topology(), *log_);
  int speaker = 0;
  values = bootstrap_->first_word(values, speaker);
  if (values.empty()) return;
  options_.config = with_values(options_.config, values);
  queue_.gather(from_ms(options_.config.cycle_time_ms),
                std::max<std::uint64_t>(options_.config.fusion_bytes, 1));
  if (options_.remake_backends) options_.remake_backends(options_);
}

void Engine::log_connections() const {
  if (tree_.size() == 1 || !log_->enabled(LogLevel::Debug)) return;
  std::vector<int> neighbours = tree_.children();
  if (tree_.parent() >= 0) neighbours.push_back(tree_.parent());
  std::ranges::sort(neighbours);
  log_->debug("connected by " + transport_name_ + " with " + format_ranks(neighbours) + " of " +
              std::to_string(tree_.size()) +
              "; hosts: " + std::to_string(tree_.topology().hosts()));
}

void Engine::make_board() {
  if (tree_.size() == 1 || tree_.topology().hosts() > 1 || !options_.make_board) return;
  BoardContext context;
  context.topology = &tree_.topology();
  context.exchange = [this](std::string_view blob) { return bootstrap_->exchange(blob); };
  context.wake_fd = tree_.transport().wake_fd();
  context.warn = [this](const std::string& text) {
    if (tree_.is_arbiter()) log_->warning(text);
  };
  board_ = options_.make_board(context);
}

void Engine::live() noexcept {
  const EngineScope scope;
  std::unique_lock engine = driver_.take();
  try {
    driver_.run(engine);
    life_.note_loop_ended();
    stop();
  } catch (const GroupFailure& seen) {
    life_.note_loop_ended();
    die(seen);
  } catch (const GroupError& error) {  // of a backend, which names the rank that it has lost
    life_.note_loop_ended();
    die({{error.failed_rank(), error.what(), false}});
  } catch (...) {
    life_.note_loop_ended();
    die({{tree_.rank(), rank_name(tree_.rank()) + " failed: " + exception_text(), false}});
  }
}

void Engine::help(const WorkState& work, Stage goal, TimePoint deadline) noexcept {
  const TimePoint now = Clock::now();
  if (!work.take_first_wait()) note_wait_of(work, EventKind::WaitBegun, now);
  driver_.help(work, goal, now, deadline);
}

void Engine::note_waited(const WorkState& work) noexcept {
  if (events_->enabled()) note_wait_of(work, EventKind::WaitEnded, Clock::now());
  queue_.note_wait();
}

void Engine::note_read(const std::exception_ptr& error) noexcept {
  if (error == failure()) life_.note_told();
}

void Engine::note_wait_of(const WorkState& work, EventKind kind, TimePoint time) noexcept {
  events_->write({.time_ns = EventLog::ns_of(time), .kind = kind, .operation = work.number()});
}

void Engine::expedite(const WorkState& work) noexcept {
  FrozenSchedule* const schedule = coordinator_.schedule().schedule();
  if (schedule != nullptr && schedule->expedite(work)) queue_.wake();
}

void Engine::request_shutdown(std::string report) {
  queue_.close(std::make_exception_ptr(
      UsageError("ronde::shutdown() has been called on this rank: no operation can follow it")));
  life_.shut_down(std::move(report));
  queue_.wake();
}

std::vector<std::string> Engine::reports() const {
  std::vector<std::string> reports;
  for (const auto& [rank, report] : coordinator_.reports()) reports.push_back(report);
  return reports;
}

void Engine::request_leave(const std::string& why) {
  queue_.close(std::make_exception_ptr(UsageError("this rank is leaving the group")));
  life_.leave(why);
  // Before the start is over there is nothing to wake; the loop then looks before it waits.
  if (life_.has_started()) queue_.wake();
}

/// If the callback returns all the same, the loop finds a group that it has left.
void Engine::leave_from_within(const std::string& why) noexcept {
  if (std::exchange(has_left_, true) || !tree_.is_open()) return;
  request_leave(why);
  try {
    if (!failure()) {
      const GroupFailure departure{coordinator_.departure_of_this_rank()};
      static_cast<void>(coordinator_.resolver().resolve_failure(departure, true));
    }
    tree_.transport().close(false, Clock::now() + kFlushTime);
  } catch (...) {
    log_->warning("while leaving the group: " + exception_text());
  }
}

void Engine::request_abort(const std::string& text) {
  life_.abort(text);
  queue_.wake();
}

void Engine::die(const GroupFailure& seen) noexcept {
  FailureMessage failure = seen.failure;
  try {
    failure = coordinator_.resolver().resolve_failure(seen, life_.leaves());
  } catch (...) {
    log_->error("while finding out who failed the group: " + exception_text());
  }
  try {
    fail_everything(failure);
  } catch (...) {
    // Nothing above this thread could handle it, and the process must live.
    log_->error("while failing the group: " + exception_text());
  }
  end_anyhow(false);
}

void Engine::fail_everything(const FailureMessage& failure) {
  const auto error = std::make_exception_ptr(GroupError(
      failure.rank, failure.text + ". The group is dead: end this process, or start a new job"));
  queue_.close(error);
  life_.note_failure(error);
  if (tree_.is_arbiter() && tree_.size() > 1 && !life_.leaves()) log_->error(failure.text);
  coordinator_.fail(error);
}

void Engine::stop() {
  if (coordinator_.departure()) throw GroupFailure{*coordinator_.departure(), true};
  try {
    for (SetEngine* set : coordinator_.sets().running()) {
      for (auto& [device, backend] : set->backends) backend->close();
    }
  } catch (...) {
    // The others are ending as well: nobody can be asked.
    throw GroupFailure{
        {tree_.rank(), rank_name(tree_.rank()) + " cannot close its backend: " + exception_text()},
        true};
  }
  end(true, Clock::now() + kClosingTime);
}

void Engine::end_anyhow(bool graceful) noexcept {
  try {
    end(graceful, Clock::now() + kFlushTime);
  } catch (...) {
    log_->warning("while closing the connections: " + exception_text());
  }
}

void Engine::end(bool graceful, TimePoint deadline) {
  if (!tree_.is_open()) return;
  queue_.detach();
  queue_.use(nullptr);
  std::vector<std::unique_ptr<Backend>> of_devices;
  {
    const std::lock_guard lock(stats_mutex_);
    final_stats_ = live_stats();
    of_devices = coordinator_.sets().stop();
  }
  coordinator_.exchanges().end(
      std::make_exception_ptr(UsageError("the group of this rank has ended")));
  const std::unique_ptr<Transport> closing = tree_.release();
  closing->close(graceful, deadline);
}

Stats Engine::stats() const {
  const std::lock_guard lock(stats_mutex_);
  Stats stats = final_stats_ ? *final_stats_ : live_stats();
  for (const auto& part : more_stats_) stats.push_back(part());
  return stats;
}

Figures Engine::figures() const {
  Figures figures = events_->figures();
  figures.seconds = std::chrono::duration<double>(Clock::now() - made_).count();
  figures.counters = stats();
  return figures;
}

void Engine::add_stats(std::function<StatsGroup()> part) {
  const std::lock_guard lock(stats_mutex_);
  more_stats_.push_back(std::move(part));
}

Stats Engine::live_stats() const {
  Stats stats;
  add_engine_stats(queue_.counters(), counters_, stats);
  const FrozenSchedule* schedule = coordinator_.schedule().schedule();
  if (schedule != nullptr) add_schedule_stats(schedule->counters(), stats);
  coordinator_.sets().add_stats(backends_.device_streams() != nullptr, stats);
  if (tree_.is_open()) stats.push_back(tree_.transport().stats());
  return stats;
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/src/base/monotonic_clock.h"
#include "core/src/base/rank_list.h"
#include "core/src/base/system.h"
#include "core/src/base/text.h"
#include "core/src/tune/autotuner.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using Clock = MonotonicClock;

/// Time limit for the last messages to be sent.
constexpr std::chrono::seconds kFlushTime{2};
/// Time limit for closing the connections once all ranks have agreed to stop.
constexpr std::chrono::seconds kClosingTime{30};
/// A limit of a shutdown is between these.
constexpr std::chrono::nanoseconds kPassed{1};
constexpr std::chrono::hours kLongestShutdown{24 * 365 * 30};
constexpr std::chrono::hours kLongestTimeout = kLongestShutdown;
/// How much longer than its own limits the engine may take before its thread is abandoned: it then
/// hangs in a library (MPI_Finalize after a rank died in it).
constexpr std::chrono::seconds kSlack{10};
/// How much longer than RONDE_INIT_TIMEOUT_S the start may take: its own limits (kAllSteps in
/// bootstrap.cc) name the missing rank, and should pass first.
constexpr std::chrono::seconds kStartSlack{4};
/// How often a thread that waits for the transport to close checks why it hangs.
constexpr std::chrono::milliseconds kLookPeriod{20};

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
      log_(std::make_shared<Logger>(parse_log_level(options_.config.log_level), -1,
                                    options_.world_name)),
      events_(std::make_shared<EventLog>(options_.config.events, log_, options_.on_event)),
      made_(Clock::now()),
      start_deadline_(Clock::now() + from_s(options_.config.init_timeout_s)),
      queue_(from_ms(options_.config.cycle_time_ms),
             std::max<std::uint64_t>(options_.config.fusion_bytes, 1),
             std::bind_front(&Loop::wake, &loop_), *events_),
      table_(options_.world),
      backends_(options_, tree_, *log_),
      control_(options_, *log_, tree_, queue_, life_),
      loop_(control_, tree_, queue_) {}

std::shared_ptr<Engine> Engine::launch(RuntimeOptions options) {
  // The engine may change its configuration until it has started (RONDE_TUNED).
  const auto timeout = from_s(options.config.init_timeout_s) + kStartSlack;
  auto engine = std::make_shared<Engine>(std::move(options));
  engine->start_thread();
  bool has_started = false;
  try {
    has_started = engine->life_.wait_started(engine->made_ + timeout);
  } catch (...) {
    engine->join(Clock::now() + kSlack);
    throw;
  }
  if (has_started) return engine;
  // MPI_Init waits for every rank and cannot be cancelled. If it returns after all, the thread in
  // it leaves the group.
  engine->request_leave();
  engine->join(Clock::now());
  engine->fail_start();
}

void Engine::start_thread() {
  try {
    thread_ = std::thread([engine = shared_from_this()] {
      const LoopThreadScope scope;
      engine->run();
    });
  } catch (const std::system_error& error) {
    throw Error("ronde::init() cannot start the thread of this rank that moves data: " +
                error.code().message() +
                ". Allow the job more threads (ulimit -u, or pids.max of its control group)");
  }
}

void Engine::fail_start() const {
  auto known = options_.hanging_start ? options_.hanging_start() : std::nullopt;
  if (!known) known = backends_.hanging_start();
  if (known) throw GroupError(*known);
  const std::string& world = options_.world_name;
  throw GroupError(-1, "the ranks did not meet within RONDE_INIT_TIMEOUT_S: at least one has not " +
                           (world.empty() ? "called ronde::init()" : "made world '" + world + "'") +
                           ", hangs or died. End this process");
}

void Engine::run() noexcept {
  try {
    start();
  } catch (...) {
    // Reported before the transport closes, as closing may wait for the other ranks.
    life_.mark_started(std::current_exception());
    try_end(bootstrap_ && bootstrap_->is_refused());
    return life_.mark_ended();
  }
  life_.mark_started();
  run_loop();
  life_.mark_ended();
}

void Engine::start() {
  tree_.open(options_.make_transport());
  bootstrap_.emplace(tree_, std::min(start_deadline_, tree_.transport().start_deadline()));
  transport_name_ = tree_.transport().name();
  log_->set_rank(tree_.rank());
  log_connections();
  const Topology& topology = tree_.topology();
  SetEngine& global = control_.sets().global();
  std::vector<int> everybody(static_cast<std::size_t>(tree_.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  global.info = make_set_info(kGlobalSet.id, std::move(everybody), true, topology);
  bootstrap_->compare_configurations(options_);
  // Horovod's programs name the timeline on rank 0 only, or one for each rank.
  int from = 0;
  std::string& timeline = options_.config.timeline;
  timeline = bootstrap_->first_text(tree_.is_arbiter() ? timeline : std::string(), from);
  agree_on_tuned_values();
  make_board();
  backends_.make_for_all(global, board_.get(), *bootstrap_);
  pin_thread(options_.config, topology, *log_);
  if (tree_.is_arbiter() && !options_.effective_config.empty()) {
    log_->info(options_.effective_config);
  }
  if (topology.host_of.at(static_cast<std::size_t>(tree_.rank())) != topology.host_of.at(0)) {
    events_->follow_clock();
  }
  const bool outnumbers_cores = topology.local_size > topology.local_cores;
  control_.start(board_.get());
  loop_.start(board_.get(), outnumbers_cores);
  table_.insert(std::make_shared<SetInfo>(global.info));
  submitter_.emplace(topology, table_, queue_, backends_.symmetric_heap(),
                     backends_.device_streams(), weak_from_this(), log_);
  const ProcessSetMaker::Parts parts{tree_,  table_, backends_, control_.exchanges(),
                                     queue_, loop_,  life_};
  set_maker_.emplace(parts, weak_from_this(), log_);
}

/// All ranks use the values of rank 0, so that they cannot differ.
void Engine::agree_on_tuned_values() {
  if (options_.config.tuned.empty()) return;
  std::string values;
  if (tree_.is_arbiter()) values = tuned_values(options_, tree_.topology(), *log_);
  int from = 0;
  values = bootstrap_->first_text(values, from);
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

void Engine::run_loop() noexcept {
  const EngineScope scope;
  std::unique_lock engine = loop_.lock();
  try {
    loop_.run(engine);
    life_.mark_loop_ended();
    stop();
  } catch (const GroupFailure& seen) {
    end_failed(seen);
  } catch (const GroupError& error) {  // of a backend, which names the rank that it has lost
    end_failed({{error.failed_rank(), error.what(), false}});
  } catch (...) {
    end_failed({{tree_.rank(), rank_name(tree_.rank()) + " failed: " + exception_text(), false}});
  }
}

void Engine::on_error_read(const std::exception_ptr& error) noexcept {
  if (error == failure()) life_.mark_failure_reported();
}

std::vector<std::string> Engine::shutdown(std::string report,
                                          std::optional<std::chrono::nanoseconds> limit) {
  if (is_of_parent()) return {};
  if (loop_.is_this_thread()) throw error_of_shutdown_in_callback();
  const std::lock_guard lock(shutdown_mutex_);
  if (!thread_.joinable()) return {};
  // The failure of the group is not thrown if the program has received it, has left by itself, or
  // is handling an error, which must not be replaced by another.
  const bool handles_error = std::uncaught_exceptions() > 0 || std::current_exception();
  const bool is_known =
      life_.is_failure_reported() || (failure() && (life_.leaves() || handles_error));
  const std::chrono::nanoseconds time = request_shutdown(std::move(report), limit);
  // Twice: once for all ranks to call shutdown, once for the last operations.
  life_.wait_loop_ended(2 * time);
  const std::optional<GroupError> lost = wait_closed();
  if (!join(Clock::now())) {
    if (lost) throw GroupError(*lost);
    throw GroupError(-1,
                     "shutdown() did not end in time: the transport does not close, as if a rank "
                     "were stopped or hung in it. End this process");
  }
  const std::exception_ptr failed = failure();
  if (failed && !is_known) std::rethrow_exception(failed);
  std::vector<std::string> reports;
  if (failed) return reports;
  for (const auto& [rank, of_rank] : control_.reports()) reports.push_back(of_rank);
  return reports;
}

std::chrono::nanoseconds Engine::request_shutdown(std::string report,
                                                  std::optional<std::chrono::nanoseconds> limit) {
  queue_.close(std::make_exception_ptr(
      UsageError("ronde::shutdown() has been called on this rank: no operation can follow it")));
  const auto wanted = limit.value_or(from_s(options_.config.shutdown_timeout_s));
  const bool is_limited = wanted.count() != 0;  // below 0: it has passed
  const std::chrono::nanoseconds time =
      std::clamp<std::chrono::nanoseconds>(wanted, kPassed, kLongestShutdown);
  life_.shut_down(std::move(report),
                  is_limited ? std::optional(Clock::now() + time) : std::nullopt);
  queue_.wake();
  return is_limited ? time : std::chrono::nanoseconds::zero();
}

/// Waits until the engine has ended. Returns the rank for which closing waits in vain, if the
/// transport names one.
std::optional<GroupError> Engine::wait_closed() {
  const TimePoint deadline = Clock::now() + kClosingTime + kSlack;
  while (!life_.wait_ended(Clock::now() + kLookPeriod) && Clock::now() < deadline) {
    const auto known = options_.hanging_start ? options_.hanging_start() : std::nullopt;
    if (known && known->failed_rank() >= 0) return known;
  }
  return std::nullopt;
}

/// Returns false if the thread did not end in time; it is then detached.
bool Engine::join(TimePoint deadline) {
  const bool has_ended = life_.wait_ended(deadline);
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return has_ended;
}

void Engine::quit() noexcept {
  if (!thread_.joinable()) return;
  leave({});
  join(Clock::now());
}

bool Engine::leave(const std::string& why) noexcept {
  if (is_of_parent()) return false;
  if (loop_.is_this_thread()) {
    leave_from_within(why);
    return true;
  }
  request_leave(why);
  return !life_.wait_ended(Clock::now() + kSlack) || failure();
}

void Engine::request_leave(const std::string& why) {
  queue_.close(std::make_exception_ptr(UsageError("this rank is leaving the group")));
  life_.leave(why);
  // Before the start is over there is nothing to wake; the loop checks before it first waits.
  if (life_.has_started()) queue_.wake();
}

/// Leaves in a callback, which may never return: waits of this rank stay pending. If it returns,
/// the loop finds that this rank has left.
void Engine::leave_from_within(const std::string& why) noexcept {
  if (std::exchange(has_left_, true) || !tree_.is_open()) return;
  request_leave(why);
  try {
    if (!failure() || life_.aborts()) {
      const GroupFailure departure{control_.departure_of_this_rank()};
      static_cast<void>(control_.resolver().resolve_failure(departure, true));
    }
    tree_.transport().close(false, Clock::now() + kFlushTime);
  } catch (...) {
    log_->warning("while leaving the group: " + exception_text());
  }
}

/// For this rank the group has failed from now on, though its loop may not have seen the request.
void Engine::abort(const std::string& text) {
  life_.abort(text);
  const std::exception_ptr error = error_of(life_.departure_of(tree_.rank(), {}));
  queue_.close(error);
  life_.set_first_failure(error);
  queue_.wake();
}

std::exception_ptr Engine::error_of(const FailureMessage& failure) const {
  const std::string& world = options_.world_name;
  const std::string end = world.empty()
                              ? ". The group is dead: end this process, or start a new job"
                              : ". The world '" + world + "' is dead: make another one";
  return std::make_exception_ptr(GroupError(failure.rank, failure.text + end));
}

void Engine::end_failed(const GroupFailure& seen) noexcept {
  life_.mark_loop_ended();
  FailureMessage failure = seen.failure;
  try {
    failure = control_.resolver().resolve_failure(seen, life_.leaves());
  } catch (...) {
    log_->error("while finding out who failed the group: " + exception_text());
  }
  try {
    const std::exception_ptr error = error_of(failure);
    queue_.close(error);
    life_.set_failure(error);
    if (tree_.is_arbiter() && tree_.size() > 1 && !life_.leaves()) log_->error(failure.text);
    control_.fail(error);
  } catch (...) {
    // Nothing above this thread could handle it, and the process must survive.
    log_->error("while failing the group: " + exception_text());
  }
  try_end(false);
}

void Engine::stop() {
  if (control_.departure()) throw GroupFailure{*control_.departure(), true};
  try {
    for (SetEngine* set : control_.sets().running()) {
      for (auto& [device, backend] : set->backends) backend->close();
    }
  } catch (...) {
    // The other ranks are ending as well: rank 0 cannot be asked.
    throw GroupFailure{
        {tree_.rank(), rank_name(tree_.rank()) + " cannot close its backend: " + exception_text()},
        true};
  }
  end(true, Clock::now() + kClosingTime);
}

void Engine::try_end(bool graceful) noexcept {
  try {
    end(graceful, Clock::now() + kFlushTime);
  } catch (...) {
    log_->warning("while closing the connections: " + exception_text());
  }
}

void Engine::end(bool graceful, TimePoint deadline) {
  if (!tree_.is_open()) return;
  queue_.detach();
  queue_.ask_first(nullptr);
  std::vector<std::unique_ptr<Backend>> of_devices;
  {
    const std::lock_guard lock(stats_mutex_);
    final_stats_ = live_stats();
    of_devices = control_.sets().stop();
  }
  control_.exchanges().end(std::make_exception_ptr(UsageError("the group of this rank has ended")));
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
  figures.peak_bytes = peak_resident_bytes();
  return figures;
}

void Engine::expect_timeout(std::chrono::nanoseconds longest) noexcept {
  if (!options_.stall_slack) return;
  control_.stall_limit().raise(std::min<Duration>(longest, kLongestTimeout) +
                               *options_.stall_slack);
}

void Engine::add_stats(std::function<StatsGroup()> part) {
  const std::lock_guard lock(stats_mutex_);
  more_stats_.push_back(std::move(part));
}

Stats Engine::live_stats() const {
  Stats stats = control_.stats();
  if (tree_.is_open()) stats.push_back(tree_.transport().stats());
  return stats;
}

}  // namespace ronde

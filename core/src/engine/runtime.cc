// SPDX-License-Identifier: Apache-2.0
#include "ronde/runtime.h"

#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "core/src/base/after_fork.h"
#include "core/src/base/loop_thread.h"
#include "core/src/config/durations.h"
#include "core/src/engine/engine.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using Clock = Engine::Clock;

/// How much longer than its own limits the coordinator may take before its thread is given up: it
/// then hangs in a library (MPI_Finalize after a rank died in it).
constexpr std::chrono::seconds kSlack{10};
/// The same for the start, whose own limits name the missing rank and should pass first.
constexpr std::chrono::seconds kStartSlack{3};
/// How often a thread that waits for the transport to close looks why it hangs.
constexpr std::chrono::milliseconds kLookPeriod{20};

[[noreturn]] void fail_start(const std::function<std::optional<GroupError>()>& hanging_transport,
                             const Engine& engine) {
  auto known = hanging_transport ? hanging_transport() : std::nullopt;
  if (!known) known = engine.hanging_start();
  if (known) throw GroupError(*known);
  throw GroupError(-1,
                   "the ranks did not meet within RONDE_INIT_TIMEOUT_S: at least one has not "
                   "called ronde::init(), hangs or died. End this process");
}

/// The thread shares the engine, so that giving up on the one leaves the other intact.
std::thread start_thread(std::shared_ptr<Engine> engine) {
  try {
    return std::thread([engine = std::move(engine)] {
      note_loop_thread();
      engine->run();
    });
  } catch (const std::system_error& error) {
    throw Error("ronde::init() cannot start the thread of this rank that moves data: " +
                error.code().message() +
                ". Allow the job more threads (ulimit -u, or pids.max of its control group)");
  }
}

}  // namespace

class Runtime::Impl {
 public:
  explicit Impl(RuntimeOptions options)
      : hanging_transport_(options.hanging_start),
        engine_(std::make_shared<Engine>(std::move(options))),
        thread_(start_thread(engine_)) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    leave();
    join(Clock::now());
  }

  /// Note [After fork].
  bool is_of_parent() const noexcept { return fork_depth() != fork_depth_; }

  bool leave(const std::string& why = {}) noexcept {
    if (is_of_parent()) return false;
    if (engine_->is_loop_of_this_thread()) {
      engine_->leave_from_within(why);
      return true;
    }
    engine_->request_leave(why);
    const bool ended = engine_->life().wait_ended(Clock::now() + kSlack);
    return !ended || engine_->failure() != nullptr;
  }

  /// False if the thread did not end in time; it is then left to itself.
  bool join(Clock::time_point deadline) {
    const bool ended = engine_->life().wait_ended(deadline);
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();
    }
    return ended;
  }

  Engine& engine() const noexcept { return *engine_; }

  /// Note [After fork].
  Engine& usable_engine() const {
    if (!is_of_parent()) return *engine_;
    throw error_after_fork("a function of the Runtime of rank " +
                           std::to_string(engine_->topology().rank));
  }

  /// A function of the engine whose GroupError the program gets.
  template <typename Function>
  auto call(Function function) const {
    Engine& engine = usable_engine();
    try {
      return function(engine);
    } catch (const GroupError&) {
      engine.life().note_told();
      throw;
    }
  }

  std::vector<std::string> shutdown(std::string report) {
    if (is_of_parent()) return {};
    if (engine_->is_loop_of_this_thread()) throw error_of_shutdown_in_callback();
    const std::lock_guard lock(shutdown_mutex_);
    if (!thread_.joinable()) return {};
    const bool is_known = is_end_known();
    engine_->request_shutdown(std::move(report));
    // Twice: once for all ranks to come, once for the last operations.
    engine_->life().wait_loop_ended(2 * from_s(engine_->config().shutdown_timeout_s));
    const std::optional<GroupError> lost = wait_closed();
    if (!join(Clock::now())) {
      if (lost) throw GroupError(*lost);
      throw GroupError(-1,
                       "shutdown() did not end in time: the transport does not close, as if a rank "
                       "were stopped or hung in it. End this process");
    }
    const std::exception_ptr failure = engine_->failure();
    if (failure && !is_known) std::rethrow_exception(failure);
    return failure ? std::vector<std::string>() : engine_->reports();
  }

 private:
  /// True if the program was told that the group is dead; or it is, and the program has left by
  /// itself, or is handling an error, which another must not replace.
  bool is_end_known() const {
    const EngineLife& life = engine_->life();
    const bool handles_error = std::uncaught_exceptions() > 0 || std::current_exception();
    return life.is_told() || (life.failure() && (life.leaves() || handles_error));
  }

  /// The rank for which closing waits in vain, if the transport names one.
  std::optional<GroupError> wait_closed() const {
    const auto deadline = Clock::now() + Engine::kClosingTime + kSlack;
    while (!engine_->life().wait_ended(Clock::now() + kLookPeriod) && Clock::now() < deadline) {
      const auto known = hanging_transport_ ? hanging_transport_() : std::nullopt;
      if (known && known->failed_rank() >= 0) return known;
    }
    return std::nullopt;
  }

  const int fork_depth_ = fork_depth();
  const std::function<std::optional<GroupError>()> hanging_transport_;
  const std::shared_ptr<Engine> engine_;
  std::mutex shutdown_mutex_;
  std::thread thread_;  // guarded by shutdown_mutex_ after construction
};

Runtime::Runtime(RuntimeOptions options) {
  const auto hanging_start = options.hanging_start;
  // The engine may change its configuration until it has started (RONDE_TUNED).
  const auto timeout = from_s(options.config.init_timeout_s) + kStartSlack;
  auto impl = std::make_unique<Impl>(std::move(options));
  const auto deadline = Clock::now() + timeout;
  bool started = false;
  try {
    started = impl->engine().life().wait_started(deadline);
  } catch (...) {
    impl->join(Clock::now() + kSlack);
    throw;
  }
  if (!started) {
    // MPI_Init waits for every rank and cannot be cancelled. If it returns after all, the thread in
    // it leaves the group.
    impl->engine().request_leave();
    impl->join(Clock::now());
    fail_start(hanging_start, impl->engine());
  }
  impl_ = std::move(impl);
  try {
    for (const std::vector<int>& ranks : static_process_sets(config())) add_process_set(ranks);
  } catch (const UsageError&) {
    impl_->shutdown({});  // it was thrown on every rank
    throw;
  }
}

Runtime::~Runtime() {
  if (impl_ && impl_->is_of_parent()) static_cast<void>(impl_.release());
}

const Topology& Runtime::topology() const noexcept {
  return impl_->engine().topology();
}

const Config& Runtime::config() const noexcept {
  return impl_->engine().config();
}

std::string Runtime::transport_name() const {
  return impl_->usable_engine().transport_name();
}

std::string Runtime::backend_name(DeviceKind device) const {
  return impl_->usable_engine().backends().name_of(device);
}

ProcessSet Runtime::add_process_set(const std::vector<int>& ranks) {
  return impl_->call([&](Engine& engine) { return engine.set_maker().add(ranks); });
}

ProcessSet Runtime::create_process_set(const std::vector<int>& ranks, const std::string& tag) {
  return impl_->call([&](Engine& engine) { return engine.set_maker().create(ranks, tag); });
}

void Runtime::remove_process_set(ProcessSet set) {
  impl_->call([&](Engine& engine) { engine.set_maker().remove(set); });
}

std::vector<ProcessSet> Runtime::process_sets() const {
  return impl_->usable_engine().process_sets().sets();
}

std::vector<int> Runtime::ranks_of(ProcessSet set) const {
  return impl_->usable_engine().process_sets().at(set)->ranks;
}

std::optional<int> Runtime::rank_in(ProcessSet set) const {
  const auto info = impl_->usable_engine().process_sets().at(set);
  return info->is_member() ? std::optional(info->topology.rank) : std::nullopt;
}

Work Runtime::submit(Request request) {
  return impl_->call([&](Engine& engine) { return engine.submitter().submit(std::move(request)); });
}

std::vector<Work> Runtime::submit_group(std::vector<Request> requests) {
  return impl_->call(
      [&](Engine& engine) { return engine.submitter().submit_group(std::move(requests)); });
}

void Runtime::run(Request request) {
  request.caller_waits = true;
  submit(std::move(request)).wait();
}

bool Runtime::asleep() const noexcept {
  return impl_->engine().asleep();
}

std::vector<std::string> Runtime::shutdown(std::string report) {
  return impl_->shutdown(std::move(report));
}

bool Runtime::leave(const std::string& why) noexcept {
  return impl_->leave(why);
}

void Runtime::abort(const std::string& text) {
  impl_->usable_engine().request_abort(text);
}

std::exception_ptr Runtime::failure() const {
  return impl_->usable_engine().failure();
}

void Runtime::add_stats(std::function<StatsGroup()> part) {
  impl_->usable_engine().add_stats(std::move(part));
}

std::uint64_t Runtime::joins(ProcessSet set) const {
  return impl_->usable_engine().joins(set);
}

std::shared_ptr<SymmetricHeap> Runtime::symmetric_heap() const {
  return impl_->usable_engine().backends().symmetric_heap();
}

Stats Runtime::stats() const {
  return impl_->usable_engine().stats();
}

Figures Runtime::figures() const {
  return impl_->usable_engine().figures();
}

void Runtime::mark_step(std::uint64_t samples) {
  Engine& engine = impl_->usable_engine();
  EventLog& log = *engine.events();
  log.write({.time_ns = EventLog::now_ns(),
             .kind = EventKind::StepEnded,
             .operation = log.next_step(),
             .bytes = samples});
  engine.note_step();
}

std::vector<Event> Runtime::recent_events(std::uint64_t* lost) const {
  return impl_->usable_engine().events()->recent(lost);
}

std::vector<ClockOffset> Runtime::clock_offsets() const {
  return impl_->usable_engine().events()->clock_offsets();
}

void Runtime::add_event_sink(std::shared_ptr<EventSink> sink) {
  impl_->usable_engine().events()->add_sink(std::move(sink));
}

void Runtime::remove_event_sink(const EventSink& sink) {
  impl_->usable_engine().events()->remove_sink(sink);
}

RuntimeSpan::RuntimeSpan(const Runtime& runtime, std::string_view name)
    : log_(runtime.impl_->usable_engine().events()), number_(log_->next_span()) {
  log_->write({.time_ns = EventLog::now_ns(), .kind = EventKind::SpanBegun, .operation = number_},
              name);
}

RuntimeSpan::RuntimeSpan(RuntimeSpan&& other) noexcept {
  *this = std::move(other);
}

RuntimeSpan& RuntimeSpan::operator=(RuntimeSpan&& other) noexcept {
  end();
  log_ = std::exchange(other.log_, nullptr);
  number_ = other.number_;
  bytes_ = other.bytes_;
  return *this;
}

void RuntimeSpan::end() noexcept {
  const std::shared_ptr<EventLog> log = std::exchange(log_, nullptr);
  if (!log) return;
  log->write({.time_ns = EventLog::now_ns(),
              .kind = EventKind::SpanEnded,
              .operation = number_,
              .bytes = bytes_});
}

}  // namespace ronde

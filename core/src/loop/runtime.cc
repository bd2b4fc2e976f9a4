// SPDX-License-Identifier: Apache-2.0
#include "ronde/runtime.h"

#include <bit>
#include <utility>

#include "core/src/base/caller.h"
#include "core/src/base/rank_list.h"
#include "core/src/loop/engine.h"

namespace ronde {
namespace {

/// Note [After fork].
Engine& usable(const std::shared_ptr<Engine>& engine) {
  if (!engine->is_of_parent()) return *engine;
  throw error_after_fork("a function of the Runtime of rank " +
                         std::to_string(engine->topology().rank));
}

/// Calls a function of the engine, and records that the program receives its GroupError.
template <typename Function>
auto call(const std::shared_ptr<Engine>& engine, Function function) {
  Engine& called = usable(engine);
  try {
    return function(called);
  } catch (const GroupError&) {
    called.mark_failure_reported();
    throw;
  }
}

}  // namespace

Runtime::Runtime(RuntimeOptions options) : engine_(Engine::launch(std::move(options))) {
  try {
    for (const std::vector<int>& ranks : static_process_sets(config())) add_process_set(ranks);
  } catch (const UsageError&) {
    engine_->shutdown({});  // every rank throws it
    throw;
  } catch (...) {
    engine_->quit();
    throw;
  }
}

Runtime::~Runtime() {
  if (engine_->is_of_parent()) {  // Note [After fork]: it is not freed
    static_cast<void>(new std::shared_ptr<Engine>(std::move(engine_)));
  } else {
    engine_->quit();
  }
}

const Topology& Runtime::topology() const noexcept {
  return engine_->topology();
}

const Config& Runtime::config() const noexcept {
  return engine_->config();
}

const std::string& Runtime::world_name() const noexcept {
  return engine_->world_name();
}

std::string Runtime::transport_name() const {
  return usable(engine_).transport_name();
}

std::string Runtime::backend_name(DeviceKind device) const {
  return usable(engine_).backends().name_of(device);
}

ProcessSet Runtime::add_process_set(const std::vector<int>& ranks) {
  return call(engine_, [&](Engine& engine) { return engine.set_maker().add(ranks); });
}

ProcessSet Runtime::create_process_set(const std::vector<int>& ranks, const std::string& tag) {
  return call(engine_, [&](Engine& engine) { return engine.set_maker().create(ranks, tag); });
}

void Runtime::remove_process_set(ProcessSet set) {
  call(engine_, [&](Engine& engine) { engine.set_maker().remove(set); });
}

std::vector<ProcessSet> Runtime::process_sets() const {
  return usable(engine_).process_sets().sets();
}

std::vector<int> Runtime::ranks_of(ProcessSet set) const {
  return usable(engine_).process_sets().at(set)->ranks;
}

std::optional<int> Runtime::rank_in(ProcessSet set) const {
  const auto info = usable(engine_).process_sets().at(set);
  return info->is_member() ? std::optional(info->topology.rank) : std::nullopt;
}

Work Runtime::submit(Request request) {
  return call(engine_,
              [&](Engine& engine) { return engine.submitter().submit(std::move(request)); });
}

std::vector<Work> Runtime::submit_group(std::vector<Request> requests) {
  return call(engine_,
              [&](Engine& engine) { return engine.submitter().submit_group(std::move(requests)); });
}

void Runtime::run(Request request) {
  request.caller_waits = true;
  submit(std::move(request)).wait();
}

PersistentOp Runtime::prepare(Request request) {
  return call(engine_, [&](Engine& engine) { return engine.prepare(std::move(request)); });
}

bool Runtime::asleep() const noexcept {
  return engine_->asleep();
}

std::vector<std::string> Runtime::shutdown(std::string report,
                                           std::optional<std::chrono::nanoseconds> limit) {
  return engine_->shutdown(std::move(report), limit);
}

bool Runtime::leave(const std::string& why) noexcept {
  return engine_->leave(why);
}

void Runtime::abort(const std::string& text) {
  usable(engine_).abort(text);
}

std::exception_ptr Runtime::failure() const {
  return usable(engine_).failure();
}

void Runtime::add_stats(std::function<StatsGroup()> part) {
  usable(engine_).add_stats(std::move(part));
}

std::uint64_t Runtime::joins(ProcessSet set) const {
  return usable(engine_).joins(set);
}

std::shared_ptr<SymmetricHeap> Runtime::symmetric_heap() const {
  return usable(engine_).backends().symmetric_heap();
}

void Runtime::expect_timeout(std::chrono::nanoseconds longest) {
  usable(engine_).expect_timeout(longest);
}

Stats Runtime::stats() const {
  return usable(engine_).stats();
}

Figures Runtime::figures() const {
  return usable(engine_).figures();
}

void Runtime::mark_step(std::uint64_t samples) {
  Engine& engine = usable(engine_);
  EventLog& log = *engine.events();
  log.write({.time_ns = EventLog::now_ns(),
             .kind = EventKind::StepEnded,
             .operation = log.next_step(),
             .bytes = samples});
  engine.on_step();
}

void Runtime::record(std::string_view name, double value) {
  const Engine& engine = usable(engine_);
  if (name.empty() || name.size() > kEventText) {
    throw UsageError(rank_name(engine.topology().rank) + ": record(\"" + std::string(name) +
                     "\"): give a name of 1 to " + std::to_string(kEventText) + " bytes");
  }
  engine.events()->write({.time_ns = EventLog::now_ns(),
                          .kind = EventKind::Recorded,
                          .bytes = std::bit_cast<std::uint64_t>(value)},
                         name);
}

std::vector<Event> Runtime::recent_events(std::uint64_t* lost) const {
  return usable(engine_).events()->recent(lost);
}

std::vector<ClockOffset> Runtime::clock_offsets() const {
  return usable(engine_).events()->clock_offsets();
}

void Runtime::add_event_sink(std::shared_ptr<EventSink> sink) {
  usable(engine_).events()->add_sink(std::move(sink));
}

void Runtime::remove_event_sink(const EventSink& sink) {
  usable(engine_).events()->remove_sink(sink);
}

RuntimeSpan::RuntimeSpan(const Runtime& runtime, std::string_view name)
    : log_(usable(runtime.engine_).events()), number_(log_->next_span()) {
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
  file_ = std::move(other.file_);
  offset_ = other.offset_;
  return *this;
}

void RuntimeSpan::end() noexcept {
  const std::shared_ptr<EventLog> log = std::exchange(log_, nullptr);
  if (!log || log->is_of_parent()) return;
  log->write({.time_ns = EventLog::now_ns(),
              .kind = EventKind::SpanEnded,
              .operation = number_,
              .bytes = bytes_,
              .offset = offset_},
             file_);
}

void RuntimeSpan::set_file(std::string_view path, std::uint64_t offset) {
  file_ = path;
  offset_ = offset;
}

/// A persistent operation of one engine, which it does not keep alive.
class PersistentState {
 public:
  PersistentState(const std::shared_ptr<Engine>& engine, Preparation preparation)
      : engine_(engine), rank_(engine->topology().rank), preparation_(std::move(preparation)) {}

  ~PersistentState() {
    if (fork_depth() != fork_depth_) return;
    if (const auto engine = engine_.lock()) engine->submitter().unprepare(preparation_);
  }
  PersistentState(const PersistentState&) = delete;
  PersistentState& operator=(const PersistentState&) = delete;

  bool has_ended() const noexcept { return engine_.expired(); }

  Work start(Start start) {
    if (fork_depth() != fork_depth_) throw error_after_fork(name() + ": PersistentOp::start()");
    const std::shared_ptr<Engine> engine = engine_.lock();
    if (!engine) {
      throw UsageError(rank_name(rank_) + ": " + name() +
                       ": the Runtime that prepared it has ended: prepare it again");
    }
    return call(engine,
                [&](Engine& its) { return its.submitter().start(preparation_, std::move(start)); });
  }

 private:
  std::string name() const { return display_name(*preparation_.spec, preparation_.spec->name); }

  const std::weak_ptr<Engine> engine_;
  const int rank_;  ///< of the group
  const Preparation preparation_;
  const int fork_depth_ = fork_depth();
};

PersistentOp::operator bool() const noexcept {
  return state_ != nullptr && !state_->has_ended();
}

Work PersistentOp::start(Start start) const {
  if (!state_) throw UsageError("a PersistentOp was started that Runtime::prepare() did not make");
  return state_->start(std::move(start));
}

PersistentOp Engine::prepare(Request request) {
  return PersistentOp(std::make_shared<PersistentState>(shared_from_this(),
                                                        submitter_->prepare(std::move(request))));
}

}  // namespace ronde

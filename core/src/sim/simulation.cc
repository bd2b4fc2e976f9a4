// SPDX-License-Identifier: Apache-2.0
#include "ronde/simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/src/base/rank_list.h"
#include "core/src/loop/engine.h"
#include "core/src/sim/event_queue.h"
#include "core/src/sim/network.h"
#include "core/src/sim/rank_fibers.h"
#include "core/src/sim/simulated_backend.h"
#include "core/src/sim/simulated_control.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using Time = Simulation::Time;

/// How much longer than all limits of time the ranks may wait without any event of the program.
constexpr std::chrono::minutes kLongestSilence{1};

/// Addresses that no process has, so that an access is seen: each buffer begins at another one of
/// these, and none is as large as they are apart.
constexpr std::uintptr_t kFirstAddress = std::uintptr_t{1} << 60;
constexpr std::uintptr_t kAddressStep = std::uintptr_t{1} << 40;
/// Operations without a name use so many addresses in turn.
constexpr std::uint64_t kUnnamedAddresses = 1 << 14;

void check(const SimulationOptions& options) {
  int host = 0;
  for (const int next : options.host_of) {
    if (next != host && next != host + 1) host = -1;
    if (host < 0) break;
    host = next;
  }
  if (options.host_of.empty() || options.host_of.front() != 0 || host < 0) {
    throw UsageError("SimulationOptions::host_of: give the host of each rank, 0 first, ascending");
  }
  const NetworkCosts& network = options.network;
  const HostCosts& on_host = options.host;
  for (const double cost :
       {network.overhead, network.overhead_per_byte, network.gap, network.gap_per_byte,
        network.latency, on_host.wake, on_host.round, on_host.operation, on_host.message,
        on_host.message_latency, on_host.bytes_shared, on_host.bytes_reduced}) {
    if (cost >= 0 && std::isfinite(cost)) continue;
    throw UsageError("a cost of a simulation is " + std::to_string(cost) +
                     ": give seconds, 0 or more");
  }
  check_config(options.config);
  if (options.config.verify || !options.config.process_sets.empty()) {
    throw UsageError(
        "a simulation has neither results to verify nor process sets: leave out RONDE_VERIFY and "
        "RONDE_PROCESS_SETS");
  }
}

void check(const Request& request) {
  const bool is_known =
      request.kind == Collective::Allreduce || request.kind == Collective::Broadcast;
  const bool scales = request.prescale != 1.0 || request.postscale != 1.0 ||
                      request.rank_factor != 1.0 || request.op == ReduceOp::Average;
  const bool is_exact = scales && !is_floating(real_type(request.dtype));
  const bool touches_data = is_exact || request.op == ReduceOp::Adasum ||
                            request.rank_factor != 1.0 || request.symmetric ||
                            request.device.kind != DeviceKind::Cpu;
  if (is_known && !touches_data) return;
  throw UsageError("operation '" + request.name +
                   "': only allreduces and broadcasts can be simulated, on the CPU, without "
                   "adasum, averages of integers, rank_factor and symmetric buffers");
}

/// The configuration of a rank: its choices of backends are not for the simulated one, its events
/// would take much memory, and its thread is that of all ranks.
Config engine_config(Config config) {
  config.cpu_backend = config.gpu_backend = "auto";
  config.events = 0;
  config.thread_affinity.clear();
  return config;
}

/// The clock and the specs of the only simulation of the process.
class Exclusive {
 public:
  explicit Exclusive(RankFibers& fibers) {
    if (MonotonicClock::is_simulated()) {
      throw UsageError("a process can have one Simulation at a time");
    }
    MonotonicClock::simulate(&fibers);
    share_among_ranks(&specs_);
  }
  ~Exclusive() {
    share_among_ranks(nullptr);
    MonotonicClock::simulate(nullptr);
  }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  SpecPool specs_;
};

}  // namespace

class Simulation::Impl {
 public:
  explicit Impl(SimulationOptions options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Time now() const noexcept { return std::max(events_.now().time_since_epoch(), reached_); }
  void at(TimePoint time, std::function<void()> action);
  void submit(int rank, Request request, std::function<void(std::exception_ptr)> done);
  void wait(int rank);
  void mark_step(int rank) { program_of(rank).engine->on_step(); }
  void shut_down(int rank);
  void kill(int rank);
  void stop(int rank);
  void go_on(int rank);
  bool run(TimePoint end);
  Time started() const noexcept { return started_; }
  Stats stats(int rank) const { return of(rank).engine->stats(); }
  Time engine_time(int rank) const noexcept { return network_.charged(rank); }
  std::exception_ptr failure(int rank) const;

 private:
  struct Rank {
    int number;
    std::shared_ptr<Engine> engine;
    bool has_started = false;
    bool shuts_down = false;
    std::exception_ptr start_error = nullptr;
    bool is_dead = false;
    bool is_stopped = false;
    std::uint64_t in_flight = 0;
    std::uint64_t unnamed = 0;  ///< operations without a name so far
    Work last = {};             ///< submitted last
  };

  std::size_t place_of(int rank) const;
  Rank& of(int rank) { return ranks_[place_of(rank)]; }
  const Rank& of(int rank) const { return ranks_[place_of(rank)]; }
  Rank& program_of(int rank);
  RuntimeOptions runtime_options(int rank, const BackendFactory& backend);
  void on_suspend(Rank& rank);
  void begin_program(const Rank& rank);
  void end(Rank& rank);
  void* address_of(Rank& rank, const std::string& name);
  void finish(Rank& rank, const Work& work, const std::function<void(std::exception_ptr)>& done);
  bool have_ended() const noexcept { return ended_ == ranks_.size(); }
  void expect_only_stopped() const;

  const SimulationOptions options_;
  EventQueue events_;
  SimulatedNetwork network_{events_, options_};
  RankFibers fibers_;
  SimulatedControl control_{options_, network_, fibers_};
  const Exclusive exclusive_{fibers_};
  std::vector<Rank> ranks_;
  std::map<std::string, std::uintptr_t> addresses_;  ///< by the name of an operation
  std::size_t started_ranks_ = 0, ended_ = 0;
  Time started_{0};
  Time reached_{0};            ///< by run()
  TimePoint last_action_{};    ///< of the program
  Duration longest_limit_{0};  ///< of what may end a wait
};

Simulation::Impl::Impl(SimulationOptions options)
    : options_((check(options), std::move(options))),
      fibers_(events_, network_, static_cast<int>(options_.host_of.size()),
              from_s(options_.host.wake)) {
  const Config& config = options_.config;
  for (const double limit : {config.stall_warn_s, config.stall_abort_s, config.init_timeout_s,
                             config.shutdown_timeout_s}) {
    longest_limit_ = std::max<Duration>(longest_limit_, from_s(limit));
  }
  const BackendFactory backend = simulated_backend_factory(
      network_, events_, options_, [this](int rank) { fibers_.notify_poll(rank); });
  const int size = static_cast<int>(options_.host_of.size());
  ranks_.reserve(options_.host_of.size());
  for (int number = 0; number < size; ++number) {
    Rank& rank = ranks_.emplace_back(
        Rank{number, std::make_shared<Engine>(runtime_options(number, backend))});
    const auto run = [engine = rank.engine.get()] {
      const LoopThreadScope scope;
      engine->run();
    };
    fibers_.start(number, run, [this, &rank] { on_suspend(rank); });
  }
}

Simulation::Impl::~Impl() {
  for (Rank& rank : ranks_) end(rank);
}

RuntimeOptions Simulation::Impl::runtime_options(int rank, const BackendFactory& backend) {
  RuntimeOptions options;
  options.config = engine_config(options_.config);
  options.make_transport = [this, rank] { return control_.transport(rank); };
  options.make_board = [this, rank](BoardContext&) { return control_.board(rank); };
  options.backends["simulated"] = backend;
  if (options_.on_stall) {
    options.on_stall = [this, rank](const std::vector<StalledOperation>& stalled) {
      events_.at(fibers_.now(), [this, rank, stalled] { options_.on_stall(rank, stalled); });
    };
  }
  return options;
}

std::size_t Simulation::Impl::place_of(int rank) const {
  const auto place = static_cast<std::size_t>(rank);
  if (rank >= 0 && place < ranks_.size()) return place;
  throw UsageError(rank_name(rank) + " does not exist in a simulation of " +
                   std::to_string(ranks_.size()));
}

/// Returns a rank whose program runs.
Simulation::Impl::Rank& Simulation::Impl::program_of(int rank) {
  Rank& found = of(rank);
  last_action_ = events_.now();
  if (found.has_started && !found.is_dead) return found;
  throw UsageError("the program of " + rank_name(rank) +
                   (found.is_dead ? " was killed" : " has not started (on_started)"));
}

void Simulation::Impl::at(TimePoint time, std::function<void()> action) {
  events_.at(time, [this, action = std::move(action)] {
    last_action_ = events_.now();
    action();
  });
}

void* Simulation::Impl::address_of(Rank& rank, const std::string& name) {
  std::uintptr_t number = rank.unnamed % kUnnamedAddresses;
  if (name.empty()) {
    ++rank.unnamed;
  } else {
    number = addresses_.try_emplace(name, kUnnamedAddresses + addresses_.size()).first->second;
  }
  return reinterpret_cast<void*>(kFirstAddress + number * kAddressStep);
}

void Simulation::Impl::submit(int number, Request request,
                              std::function<void(std::exception_ptr)> done) {
  Rank& rank = program_of(number);
  check(request);
  longest_limit_ = std::max<Duration>(longest_limit_, request.timeout);
  request.input = request.output = address_of(rank, request.name);
  const bool waits = request.caller_waits;
  rank.last = rank.engine->submitter().submit(std::move(request));
  ++rank.in_flight;
  rank.last.on_done(
      [this, &rank, work = rank.last, done = std::move(done)] { finish(rank, work, done); });
  if (waits) wait(number);
}

/// Runs in the engine of the rank.
void Simulation::Impl::finish(Rank& rank, const Work& work,
                              const std::function<void(std::exception_ptr)>& done) {
  if (rank.is_dead) return;
  fibers_.charge(from_s(options_.host.operation));
  at(fibers_.now(), [&rank, error = work.error(), done] {
    --rank.in_flight;
    if (!rank.is_dead) done(error);
  });
}

void Simulation::Impl::wait(int number) {
  Rank& rank = program_of(number);
  if (!rank.last.error()) rank.last.wait_for(Duration::zero());
}

void Simulation::Impl::shut_down(int number) {
  Rank& rank = program_of(number);
  rank.shuts_down = true;
  rank.engine->request_shutdown({}, std::nullopt);
}

void Simulation::Impl::kill(int number) {
  last_action_ = events_.now();
  end(of(number));
}

void Simulation::Impl::stop(int number) {
  of(number).is_stopped = true;
  network_.stop(number);
}

void Simulation::Impl::go_on(int number) {
  of(number).is_stopped = false;
  network_.go_on(number);
}

/// Ends the process of a rank: its engine sees nothing and sends nothing any more.
void Simulation::Impl::end(Rank& rank) {
  if (fibers_.has_ended(rank.number)) return;
  rank.is_dead = true;
  network_.cut(rank.number);
  control_.kill(rank.number);
  rank.engine->request_leave();
  fibers_.end(rank.number);
}

std::exception_ptr Simulation::Impl::failure(int rank) const {
  const Rank& asked = of(rank);
  return asked.start_error ? asked.start_error : asked.engine->failure();
}

void Simulation::Impl::on_suspend(Rank& rank) {
  if (!rank.has_started && rank.engine->has_started()) {
    rank.has_started = true;
    at(network_.time(rank.number), [this, &rank] { begin_program(rank); });
  }
  if (!fibers_.has_ended(rank.number)) return;
  ++ended_;
  try {
    rank.engine->expect_started();
  } catch (...) {
    rank.start_error = std::current_exception();
  }
}

void Simulation::Impl::begin_program(const Rank& rank) {
  if (++started_ranks_ == ranks_.size()) started_ = now();
  if (options_.on_started && !rank.is_dead) options_.on_started(rank.number);
}

bool Simulation::Impl::run(TimePoint end) {
  while (!events_.empty() || fibers_.has_timer()) {
    const bool is_timer =
        fibers_.has_timer() && (events_.empty() || fibers_.next_timer() < events_.next());
    const TimePoint next = is_timer ? fibers_.next_timer() : events_.next();
    if (next > end) {
      reached_ = end.time_since_epoch();
      return have_ended();
    }
    if (!is_timer) {
      events_.run_next();
    } else {
      // If nothing else will happen, limits of time are all that is left.
      if (events_.empty() && next > last_action_ + longest_limit_ + kLongestSilence) break;
      fibers_.run_next_timer();
    }
  }
  if (!have_ended()) expect_only_stopped();
  return have_ended();
}

void Simulation::Impl::expect_only_stopped() const {
  std::vector<int> in_operations, idle, shutting_down;
  for (const Rank& rank : ranks_) {
    if (fibers_.has_ended(rank.number) || rank.is_stopped) continue;
    auto& same = rank.in_flight > 0 ? in_operations : rank.shuts_down ? shutting_down : idle;
    same.push_back(rank.number);
  }
  if (in_operations.empty() && idle.empty() && shutting_down.empty()) return;
  std::string text = "the simulated ranks wait for what never comes:";
  const auto add = [&text](const std::vector<int>& ranks, const std::string& what) {
    if (!ranks.empty()) text += " " + format_ranks(ranks) + what;
  };
  add(in_operations, " for operations;");
  add(shutting_down, " in shutdown;");
  add(idle, " for calls of the program;");
  throw Error(text + " after " + std::to_string(now().count() / 1'000'000) +
              " ms nothing else happens. Let all ranks submit the same operations, and end each "
              "by shut_down() or kill()");
}

Simulation::Simulation(SimulationOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

Simulation::~Simulation() = default;

Time Simulation::now() const noexcept {
  return impl_->now();
}

void Simulation::at(Time time, std::function<void()> action) {
  impl_->at(TimePoint(time), std::move(action));
}

void Simulation::submit(int rank, Request request, std::function<void(std::exception_ptr)> done) {
  impl_->submit(rank, std::move(request), std::move(done));
}

void Simulation::wait(int rank) {
  impl_->wait(rank);
}

void Simulation::mark_step(int rank) {
  impl_->mark_step(rank);
}

void Simulation::shut_down(int rank) {
  impl_->shut_down(rank);
}

void Simulation::kill(int rank) {
  impl_->kill(rank);
}

void Simulation::stop(int rank) {
  impl_->stop(rank);
}

void Simulation::go_on(int rank) {
  impl_->go_on(rank);
}

bool Simulation::run(Time end) {
  return impl_->run(TimePoint(end));
}

Time Simulation::started() const noexcept {
  return impl_->started();
}

Stats Simulation::stats(int rank) const {
  return impl_->stats(rank);
}

Time Simulation::engine_time(int rank) const noexcept {
  return impl_->engine_time(rank);
}

std::exception_ptr Simulation::failure(int rank) const {
  return impl_->failure(rank);
}

}  // namespace ronde

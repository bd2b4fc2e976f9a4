// SPDX-License-Identifier: Apache-2.0
#include "ronde/simulation.h"

#include <algorithm>
#include <array>
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
  const std::vector<int>& hosts = options.host_of;
  const auto leaves_out = [](int a, int b) { return b != a && b != a + 1; };
  if (hosts.empty() || hosts.front() != 0 ||
      std::ranges::adjacent_find(hosts, leaves_out) != hosts.end()) {
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

struct Simulation::Impl {
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

  explicit Impl(SimulationOptions given);

  RuntimeOptions runtime_options(int rank) {
    RuntimeOptions made;
    made.config = engine_config(options.config);
    made.make_transport = [this, rank] { return control.transport(rank); };
    made.make_board = [this, rank](BoardContext&) { return control.board(rank); };
    made.backends["simulated"] = backend;
    if (options.on_stall) {
      made.on_stall = [this, rank](const std::vector<StalledOperation>& stalled) {
        events.at(fibers.now(), [this, rank, stalled] { options.on_stall(rank, stalled); });
      };
    }
    return made;
  }

  Rank& of(int rank) {
    const auto place = static_cast<std::size_t>(rank);
    if (rank >= 0 && place < ranks.size()) return ranks[place];
    throw UsageError(rank_name(rank) + " does not exist in a simulation of " +
                     std::to_string(ranks.size()));
  }

  /// Returns a rank whose program runs.
  Rank& program_of(int rank) {
    Rank& found = of(rank);
    last_action = events.now();
    if (found.has_started && !found.is_dead) return found;
    throw UsageError("the program of " + rank_name(rank) +
                     (found.is_dead ? " was killed" : " has not started (on_started)"));
  }

  void at(TimePoint time, std::function<void()> action) {
    events.at(time, [this, action = std::move(action)] {
      last_action = events.now();
      action();
    });
  }

  void on_suspend(Rank& rank) {
    if (!rank.has_started && rank.engine->has_started()) {
      rank.has_started = true;
      at(network.time(rank.number), [this, &rank] { begin_program(rank); });
    }
    if (!fibers.has_ended(rank.number)) return;
    ++ended;
    try {
      rank.engine->expect_started();
    } catch (...) {
      rank.start_error = std::current_exception();
    }
  }

  void begin_program(const Rank& rank) {
    if (++started_ranks == ranks.size()) started = events.now().time_since_epoch();
    if (options.on_started && !rank.is_dead) options.on_started(rank.number);
  }

  void* address_of(Rank& rank, const std::string& name) {
    std::uintptr_t number = rank.unnamed % kUnnamedAddresses;
    if (name.empty()) {
      ++rank.unnamed;
    } else {
      number = addresses.try_emplace(name, kUnnamedAddresses + addresses.size()).first->second;
    }
    return reinterpret_cast<void*>(kFirstAddress + number * kAddressStep);
  }

  /// Runs in the engine of the rank.
  void finish(Rank& rank, const Work& work, const std::function<void(std::exception_ptr)>& done) {
    if (rank.is_dead) return;
    fibers.charge(from_s(options.host.operation));
    at(fibers.now(), [&rank, error = work.error(), done] {
      --rank.in_flight;
      if (!rank.is_dead) done(error);
    });
  }

  /// Ends the process of a rank: its engine sees nothing and sends nothing any more.
  void end(Rank& rank) {
    if (fibers.has_ended(rank.number)) return;
    rank.is_dead = true;
    network.cut(rank.number);
    control.end(rank.number, false);
    rank.engine->request_leave();
    fibers.end(rank.number);
  }

  bool have_ended() const noexcept { return ended == ranks.size(); }
  void expect_only_stopped() const {
    const std::array<const char*, 3> what = {" for operations;", " in shutdown;",
                                             " for calls of the program;"};
    std::array<std::vector<int>, 3> waiting;
    for (const Rank& rank : ranks) {
      if (fibers.has_ended(rank.number) || rank.is_stopped) continue;
      waiting[rank.in_flight > 0 ? 0 : rank.shuts_down ? 1 : 2].push_back(rank.number);
    }
    std::string text;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (!waiting[i].empty()) text += " " + format_ranks(waiting[i]) + what[i];
    }
    if (text.empty()) return;
    throw Error("the simulated ranks wait for what never comes:" + text + " after " +
                std::to_string(events.now().time_since_epoch() / std::chrono::milliseconds(1)) +
                " ms nothing else happens. Let all ranks submit the same operations, and end each "
                "by shut_down() or kill()");
  }

  const SimulationOptions options;
  BackendFactory backend;  ///< has what events refer to
  EventQueue events;
  SimulatedNetwork network{events, options};
  RankFibers fibers;
  SimulatedControl control{options, network, fibers};
  const Exclusive exclusive{fibers};
  std::vector<Rank> ranks;
  std::map<std::string, std::uintptr_t> addresses;  ///< by the name of an operation
  std::size_t started_ranks = 0, ended = 0;
  Time started{0};
  Time reached{0};            ///< by run()
  TimePoint last_action{};    ///< of the program
  Duration longest_limit{0};  ///< of what may end a wait
};

Simulation::Impl::Impl(SimulationOptions given)
    : options((check(given), std::move(given))),
      fibers(events, network, static_cast<int>(options.host_of.size()), from_s(options.host.wake)) {
  const Config& config = options.config;
  for (const double limit : {config.stall_warn_s, config.stall_abort_s, config.init_timeout_s,
                             config.shutdown_timeout_s}) {
    longest_limit = std::max<Duration>(longest_limit, from_s(limit));
  }
  backend = simulated_backend_factory(network, events, options,
                                      [this](int rank) { fibers.notify_poll(rank); });
  const int size = static_cast<int>(options.host_of.size());
  ranks.reserve(options.host_of.size());
  for (int number = 0; number < size; ++number) {
    Rank& rank =
        ranks.emplace_back(Rank{number, std::make_shared<Engine>(runtime_options(number))});
    const auto run = [engine = rank.engine.get()] {
      const LoopThreadScope scope;
      engine->run();
    };
    fibers.start(number, run, [this, &rank] { on_suspend(rank); });
  }
}

Simulation::Simulation(SimulationOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

Simulation::~Simulation() {
  for (Impl::Rank& rank : impl_->ranks) impl_->end(rank);
}

Time Simulation::now() const noexcept {
  return std::max(impl_->events.now().time_since_epoch(), impl_->reached);
}

void Simulation::at(Time time, std::function<void()> action) {
  impl_->at(TimePoint(time), std::move(action));
}

void Simulation::submit(int number, Request request, std::function<void(std::exception_ptr)> done) {
  Impl::Rank& rank = impl_->program_of(number);
  check(request);
  impl_->longest_limit = std::max<Duration>(impl_->longest_limit, request.timeout);
  request.input = request.output = impl_->address_of(rank, request.name);
  const bool waits = request.caller_waits;
  rank.last = rank.engine->submitter().submit(std::move(request));
  ++rank.in_flight;
  rank.last.on_done([impl = impl_.get(), &rank, work = rank.last, done = std::move(done)] {
    impl->finish(rank, work, done);
  });
  if (waits) wait(number);
}

void Simulation::wait(int number) {
  const Impl::Rank& rank = impl_->program_of(number);
  if (!rank.last.error()) rank.last.wait_for(Duration::zero());
}

void Simulation::mark_step(int rank) {
  impl_->program_of(rank).engine->on_step();
}

void Simulation::shut_down(int number) {
  Impl::Rank& rank = impl_->program_of(number);
  rank.shuts_down = true;
  rank.engine->request_shutdown({}, std::nullopt);
}

void Simulation::kill(int rank) {
  impl_->last_action = impl_->events.now();
  impl_->end(impl_->of(rank));
}

void Simulation::stop(int rank) {
  impl_->of(rank).is_stopped = true;
  impl_->network.stop(rank);
}

void Simulation::go_on(int rank) {
  impl_->of(rank).is_stopped = false;
  impl_->network.go_on(rank);
}

bool Simulation::run(Time end) {
  EventQueue& events = impl_->events;
  RankFibers& fibers = impl_->fibers;
  while (!events.empty() || fibers.has_timer()) {
    const bool is_timer =
        fibers.has_timer() && (events.empty() || fibers.next_timer() < events.next());
    const TimePoint next = is_timer ? fibers.next_timer() : events.next();
    if (next > TimePoint(end)) {
      impl_->reached = end;
      return impl_->have_ended();
    }
    // If nothing else will happen, limits of time are all that is left.
    const TimePoint last = impl_->last_action + impl_->longest_limit + kLongestSilence;
    if (events.empty() && next > last) break;
    is_timer ? fibers.run_next_timer() : events.run_next();
  }
  if (!impl_->have_ended()) impl_->expect_only_stopped();
  return impl_->have_ended();
}

Time Simulation::started() const noexcept {
  return impl_->started;
}

Stats Simulation::stats(int rank) const {
  return impl_->of(rank).engine->stats();
}

Time Simulation::engine_time(int rank) const noexcept {
  return impl_->network.charged(rank);
}

std::exception_ptr Simulation::failure(int number) const {
  const Impl::Rank& rank = impl_->of(number);
  return rank.start_error ? rank.start_error : rank.engine->failure();
}

}  // namespace ronde

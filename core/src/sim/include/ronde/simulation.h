// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ronde/config.h"
#include "ronde/request.h"
#include "ronde/runtime.h"
#include "ronde/stats.h"

namespace ronde {

/// What messages between hosts cost, in the model LogGOPS: T. Hoefler, T. Schneider, A. Lumsdaine,
/// "LogGOPSim: simulating large-scale applications in the LogGOPS model", 2010. In seconds.
struct NetworkCosts {
  double overhead = 1e-6;        ///< o: of the processor, to send or to receive a message
  double overhead_per_byte = 0;  ///< O: of the processor, for each byte of a message
  double gap = 1e-6;             ///< g: from one message that a host sends to its next one
  double gap_per_byte = 1e-9;    ///< G: of a host's link, which messages share max-min fairly
  double latency = 10e-6;        ///< L: from the link of a host to that of another
};

/// What ranks cost on one host, in seconds.
struct HostCosts {
  double wake = 5e-6;             ///< until a rank that sleeps sees a message or a submission
  double round = 1e-6;            ///< a round of the loop
  double operation = 1e-6;        ///< an operation, from its submission to its end
  double message = 1e-6;          ///< a message of the control plane: to send it, and to handle it
  double message_latency = 3e-6;  ///< such a message between two ranks of one host
  double bytes_shared = 0.2e-9;   ///< a byte that ranks of one host reduce or copy in its memory
  double bytes_reduced = 0.1e-9;  ///< a byte that a rank combines with one from another host
};

/// A message between ranks of two hosts, or of the control plane within one.
struct SimulatedMessage {
  int from = 0;                         ///< rank
  int to = 0;                           ///< rank
  std::uint64_t bytes = 0;              ///< of its content
  bool is_control = false;              ///< of the control plane
  std::chrono::nanoseconds sent{0};     ///< when its sender posted it
  std::chrono::nanoseconds arrived{0};  ///< when it is at its receiver
};

/// A group to simulate.
struct SimulationOptions {
  /// The configuration of all ranks. RONDE_EVENTS, RONDE_THREAD_AFFINITY and the names of backends
  /// have no effect.
  Config config;
  std::vector<int> host_of;  ///< of each rank, in ascending order from 0
  /// How many leaders the tree of the control plane has below one; a smaller number makes it
  /// deeper.
  int most_leaders_below = kMostLeadersBelow;
  NetworkCosts network;  ///< between hosts
  HostCosts host;        ///< of every host
  /// Called as each message arrives; may be empty.
  std::function<void(const SimulatedMessage&)> on_message = {};
  /// Called when a rank has started: its program may submit from then on. An action, as those of
  /// Simulation::at(). May be empty.
  std::function<void(int rank)> on_started = {};
  /// As RuntimeOptions::on_stall, on every rank; an action. May be empty.
  std::function<void(int rank, const std::vector<StalledOperation>&)> on_stall = {};
};

/// A group of ranks in one thread and in virtual time: the engine of every rank is the real one,
/// its control plane, backends and clock are simulated, and no data is moved. What a program does
/// is a series of events; two simulations of the same events are equal.
///
/// Only one may exist in a process, and no Runtime beside it.
///
/// Thread-safety: none.
class Simulation {
 public:
  using Time = std::chrono::nanoseconds;  ///< since the ranks began to start

  explicit Simulation(SimulationOptions options);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// Returns the virtual time.
  Time now() const noexcept;

  /// Calls `action` at that time, not before now.
  void at(Time time, std::function<void()> action);

  // To be called in an action, for the program of one rank, which may call all of these at once.

  /// Submits an allreduce or a broadcast; its buffers are never touched, and may be null. `done`,
  /// an action, is called when it has ended: null, or the error that the program would get. Throws
  /// as Runtime::submit(), and UsageError for what cannot be simulated.
  void submit(int rank, Request request, std::function<void(std::exception_ptr)> done);
  /// Its program waits for all that it has submitted, so that the engine gathers nothing any
  /// longer (Work::wait). Returns at once.
  void wait(int rank);
  /// Runtime::mark_step.
  void mark_step(int rank);
  /// Runtime::shutdown; the program submits nothing more.
  void shut_down(int rank);

  /// Ends the process of a rank at once. Its neighbours see that their connections are closed.
  void kill(int rank);
  /// Stops the process of a rank, as SIGSTOP, or lets it go on.
  /// @{
  void stop(int rank);
  void go_on(int rank);
  /// @}

  /// Simulates until nothing is left to happen, or until `end`. Returns whether all ranks have
  /// ended. Throws Error if ranks that are not stopped wait for what never comes.
  bool run(Time end = Time::max());

  /// Returns when the ranks had met, and were ready for operations; zero before.
  Time started() const noexcept;
  /// Returns the counters of a rank: Runtime::stats.
  Stats stats(int rank) const;
  /// Returns the time that the processor of a rank has spent in its engine.
  Time engine_time(int rank) const noexcept;
  /// Returns the error of a group that has failed, as this rank knows it, or why it could not
  /// start; null before.
  std::exception_ptr failure(int rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/figures.h"
#include "ronde/persistent.h"
#include "ronde/plugin/board.h"
#include "ronde/plugin/events.h"
#include "ronde/plugin/factory.h"
#include "ronde/plugin/transport.h"
#include "ronde/rank_ranges.h"
#include "ronde/request.h"
#include "ronde/stats.h"
#include "ronde/symmetric_heap.h"
#include "ronde/topology.h"
#include "ronde/tuning.h"
#include "ronde/work.h"

namespace ronde {

/// An operation that some ranks wait for and others have not submitted.
struct StalledOperation {
  std::string name;  ///< empty if it has none
  std::string text;  ///< for people: "allreduce 'x'"
  /// Barrier also for the creation of a process set, for shutdown() and for an answer of rank 0.
  Collective kind = Collective::Allreduce;
  /// Numbers within the group, also of an operation in a process set.
  /// @{
  RankRanges submitted_ranks;
  RankRanges missing_ranks;
  /// @}
  std::chrono::milliseconds waiting{0};  ///< since rank 0 has known of it
};

/// Called on every rank, on Ronde's thread or one that waits for an operation, when rank 0 finds
/// operations older than RONDE_STALL_WARN_S, or does not answer for longer, and again each time
/// that period passes. Must not block nor throw.
using StallCallback = std::function<void(const std::vector<StalledOperation>&)>;

/// The parts of a Runtime.
struct RuntimeOptions {
  /// From load_config(), or filled in by the program, which then calls check_config().
  Config config;
  /// ProcessSet::world of its sets.
  std::uint32_t world = 0;
  /// Rank 0 numbers process sets above this: a set of an earlier start of this process must not be
  /// taken for one of this start.
  std::uint32_t sets_before = 0;
  /// The name in logs and errors, equal on all ranks. Empty: the world of ronde::init().
  std::string world_name;
  /// How much longer the limit of RONDE_STALL_ABORT_S is, at least, than what expect_timeout() is
  /// given; nothing: the limit stays as configured.
  std::optional<std::chrono::nanoseconds> stall_slack;
  /// The reason why this rank cannot start (nonsense in its environment), if it cannot. It still
  /// meets the others, so that every rank throws UsageError with this text instead of waiting for
  /// it.
  std::string config_error;
  /// Makes the control plane; called on the coordinator thread.
  std::function<std::unique_ptr<Transport>()> make_transport;
  /// Returns why make_transport(), or the end of the transport in shutdown(), hangs, for the error
  /// that ends the wait; nullopt if it is not known. Called by the thread that waits, repeatedly in
  /// shutdown(). May be empty.
  std::function<std::optional<GroupError>()> hanging_start;
  /// Makes the memory that ranks of one host share; may be empty.
  MakeBoard make_board;
  /// Backends to choose from for buffers of the CPU.
  BackendRegistry backends;
  /// Backends to choose from for buffers of devices; may be empty.
  BackendRegistry device_backends;
  /// May be empty; rank 0 logs its warning in any case.
  StallCallback on_stall;
  /// Called for each event as it is written; may be empty.
  EventCallback on_event;
  /// For RONDE_AUTOTUNE and RONDE_TUNED.
  TuningOptions tuning;
  /// Makes `backends` and `device_backends` again, for values of RONDE_TUNED that all ranks have
  /// put into `config`. May be empty.
  std::function<void(RuntimeOptions&)> remake_backends;
  /// Logged once on rank 0 after all ranks have met; may be empty.
  std::string effective_config;
};

class Engine;
class EventLog;
class Runtime;

/// An activity of the program, such as loading a batch, from construction to destruction: an event
/// of the rank's figures and timeline.
///
/// Thread-safety: none; spans of several threads may overlap.
class RuntimeSpan {
 public:
  /// An empty span of no runtime.
  RuntimeSpan() = default;
  /// Begins a span of this name.
  RuntimeSpan(const Runtime& runtime, std::string_view name);
  ~RuntimeSpan() { end(); }
  RuntimeSpan(RuntimeSpan&& other) noexcept;
  RuntimeSpan& operator=(RuntimeSpan&& other) noexcept;

  /// Adds bytes that were read or written in it.
  void add_bytes(std::uint64_t bytes) noexcept { bytes_ += bytes; }
  /// Its bytes are those of the file from `offset` on.
  void set_file(std::string_view path, std::uint64_t offset = 0);
  /// Ends it now.
  void end() noexcept;

 private:
  std::shared_ptr<EventLog> log_;
  std::uint64_t number_ = 0;
  std::uint64_t bytes_ = 0;
  std::string file_;
  std::uint64_t offset_ = 0;
};

/// One rank of a group: owns the coordinator thread, the transport and the backends. Several may
/// live in one process (one a thread, in tests).
///
/// Thread-safety: every member may be called from any thread, but construction and destruction. In
/// a child of fork() shutdown(), leave() and the destructor do nothing, and what is not noexcept
/// throws UsageError.
class Runtime {
 public:
  /// Meets the other ranks: blocks until all are there, at most RONDE_INIT_TIMEOUT_S. Throws
  /// UsageError (on every rank) if their configurations differ, GroupError if a rank is missing.
  explicit Runtime(RuntimeOptions options);

  /// Without a shutdown() before it, reports that this rank left; never blocks on the others.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The topology of this rank and the others.
  const Topology& topology() const noexcept;
  /// The configuration from its construction.
  const Config& config() const noexcept;
  /// RuntimeOptions::world_name.
  const std::string& world_name() const noexcept;
  /// Transport::name of its control plane.
  std::string transport_name() const;
  /// Returns the name of the backend that serves buffers of `device`, or an empty text.
  std::string backend_name(DeviceKind device) const;

  // Process sets. The calls that make or remove one block until all its ranks have called, also if
  // the ranks are blocked in operations of other threads. They must not be called from a callback.
  // If one fails, all ranks that take part throw UsageError, and the job continues.

  /// Makes a set of these ranks, in this order: the first has rank 0 in it. Every rank of the group
  /// calls it, with the same ranks and in the same order among such calls.
  ProcessSet add_process_set(const std::vector<int>& ranks);

  /// Makes a set, called by the members alone. Calls for the same ranks match in their order; `tag`
  /// distinguishes calls that may overtake each other. Ranks that create several must not wait for
  /// each other in a circle.
  ProcessSet create_process_set(const std::vector<int>& ranks, const std::string& tag = {});

  /// Removes a set; every rank that made it calls this. Refused, and the set stays, if a rank has
  /// an operation of it in flight.
  void remove_process_set(ProcessSet set);

  /// Returns the sets that this rank made, and that of all ranks, in the order of their creation.
  std::vector<ProcessSet> process_sets() const;
  /// Returns the ranks of a set in its order. Throws UsageError if there is no such set.
  std::vector<int> ranks_of(ProcessSet set) const;
  /// Returns this rank's number in a set; nullopt if it is no member.
  std::optional<int> rank_in(ProcessSet set) const;
  /// Returns the number of joins of this rank in a set (Collective::Join).
  std::uint64_t joins(ProcessSet set) const;

  /// Starts an operation and returns at once. Throws UsageError for errors that this rank alone can
  /// see (duplicate name in flight, null buffer), GroupError if the group is dead. Errors that only
  /// the ranks together can see are reported by the Work.
  Work submit(Request request);

  /// Starts several collectives (barriers, sends and recvs excepted) of one process set, all or
  /// none: they begin together once every rank has submitted the whole group, and if one of them is
  /// refused all are. Ranks match groups by the names in them, whatever their order; those without
  /// a name by the order of calls. Work::contributed() is that of the group as a whole. Returns the
  /// handles in the order of `requests`. Throws as submit(), and then none is started.
  std::vector<Work> submit_group(std::vector<Request> requests);

  /// Calls submit() and wait(), in the fastest way (Request::caller_waits).
  void run(Request request);

  /// Prepares an operation that is started repeatedly. Sends nothing. Ignores the fields of Start
  /// in `request`; a symmetric operation starts fastest with the `output` given here. Throws
  /// UsageError as submit() does, and for a join.
  PersistentOp prepare(Request request);

  /// Tells that operations from now on have time-outs of up to `longest`: the limit of
  /// RONDE_STALL_ABORT_S then is longer, as RuntimeOptions::stall_slack says, on this rank at once
  /// and on all others before they decide on its next operation.
  void expect_timeout(std::chrono::nanoseconds longest);

  /// Returns whether Ronde's thread sleeps until a call, a message or a time limit.
  bool asleep() const noexcept;

  /// Collective and idempotent: lets operations that all ranks submitted finish, and process sets
  /// that other threads make, then stops. Sleeps until the last rank calls it. `limit`: for how
  /// long, in place of RONDE_SHUTDOWN_TIMEOUT_S, zero for as long as all ranks live; once that of
  /// one rank has passed, the group fails, and all name those that did not call it. Throws
  /// GroupError if the group dies in it, or has died and no call has thrown that, unless this rank
  /// has left or this thread is handling an exception.
  void shutdown(std::optional<std::chrono::nanoseconds> limit = {}) {
    shutdown(std::string(), limit);
  }
  /// Also returns the `report` of each rank, in rank order, on rank 0, if the group did not die.
  std::vector<std::string> shutdown(std::string report,
                                    std::optional<std::chrono::nanoseconds> limit = {});

  /// Leaves the group as the destructor does without a shutdown() before it, while others may still
  /// use this object: reports to the other ranks that this one left, and `why` if that is not
  /// empty, never blocks on them, and ends the waits of threads here with a GroupError; does
  /// nothing once the group has ended. Also while another thread is in shutdown(). Called in a
  /// callback it leaves the waits as they are. True if the group did not end by agreement.
  bool leave(const std::string& why = {}) noexcept;

  /// Fails the group on purpose: every rank gets a GroupError with this rank and `text`.
  void abort(const std::string& text);

  /// Returns the GroupError that every operation throws once the group has failed; null before.
  std::exception_ptr failure() const;

  /// Returns the counters of this rank so far, by parts (docs/tuning.md, docs/notes/counters.md).
  Stats stats() const;
  /// Adds a part of stats() that a library above the engine counts. `part` may be called by any
  /// thread at any time, also after the destruction of this object; it must not throw.
  void add_stats(std::function<StatsGroup()> part);

  /// Returns where the time of this rank went since init. With RONDE_EVENTS=0: counters only.
  Figures figures() const;
  /// Marks the end of a step of training, with the number of its samples. RONDE_AUTOTUNE measures
  /// the steps of rank 0.
  void mark_step(std::uint64_t samples = 0);
  /// Adds `value` to the Series of that name. Throws UsageError for an empty name, or one of more
  /// than kEventText bytes.
  void record(std::string_view name, double value);
  /// Returns the most recent events of this rank, oldest first. `lost`: number of earlier events.
  std::vector<Event> recent_events(std::uint64_t* lost = nullptr) const;
  /// Returns how far rank 0's clock is ahead, early and late in the run; empty if it is not known.
  /// On rank 0's host the clock is the same.
  std::vector<ClockOffset> clock_offsets() const;
  /// Passes all later events to `sink`.
  void add_event_sink(std::shared_ptr<EventSink> sink);
  /// Removes `sink`, and returns once it has received the events so far.
  void remove_event_sink(const EventSink& sink);

  /// Returns the memory of symmetric allreduces (Request::symmetric); null if the backend has none.
  /// It may outlive this object.
  std::shared_ptr<SymmetricHeap> symmetric_heap() const;

 private:
  friend class RuntimeSpan;
  std::shared_ptr<Engine> engine_;
};

}  // namespace ronde

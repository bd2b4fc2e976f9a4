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
  /// Barrier also for the making of a process set, for shutdown() and for an answer of rank 0.
  Collective kind = Collective::Allreduce;
  /// Numbers within the group, also of an operation in a process set.
  /// @{
  std::vector<int> submitted_ranks;
  std::vector<int> missing_ranks;
  /// @}
  std::chrono::milliseconds waiting{0};  ///< since rank 0 has known of it
};

/// Called on every rank, on Ronde's thread or one that waits for an operation, when rank 0 finds
/// operations older than RONDE_STALL_WARN_S, or does not answer for longer, and again each time
/// that period passes. Must not block nor throw.
using StallCallback = std::function<void(const std::vector<StalledOperation>&)>;

/// The parts of a Runtime.
struct RuntimeOptions {
  /// From load_config(), or filled in by the program: then check_config() it.
  Config config;
  /// ProcessSet::world of its sets.
  std::uint32_t world = 0;
  /// Equal on all ranks; logs and errors bear it. Empty: that of ronde::init().
  std::string world_name;
  /// Why this rank cannot start (nonsense in its environment), if it cannot. It still meets the
  /// others, so that every rank throws UsageError with this text instead of waiting for it.
  std::string config_error;
  /// Makes the control plane; called on the coordinator thread.
  std::function<std::unique_ptr<Transport>()> make_transport;
  /// Why make_transport(), or the end of the transport in shutdown(), hangs, for the error that
  /// ends the wait; nothing if it is not known. Called by the thread that waits, again and again
  /// in shutdown(). May be empty.
  std::function<std::optional<GroupError>()> hanging_start;
  /// Makes the memory that ranks of one host share; may be empty.
  MakeBoard make_board;
  /// Backends to choose from for buffers of the CPU.
  BackendRegistry backends;
  /// The same for devices; may be empty.
  BackendRegistry device_backends;
  /// May be empty; rank 0 logs its warning in any case.
  StallCallback on_stall;
  /// For tools that want to be told at once; may be empty.
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

/// Something that the program does, such as to load a batch, from construction to destruction: an
/// event of the rank's figures and timeline.
///
/// Thread-safety: none; spans of several threads may overlap.
class RuntimeSpan {
 public:
  /// Of no runtime.
  RuntimeSpan() = default;
  /// Begins a span of this name.
  RuntimeSpan(const Runtime& runtime, std::string_view name);
  ~RuntimeSpan() { end(); }
  RuntimeSpan(RuntimeSpan&& other) noexcept;
  RuntimeSpan& operator=(RuntimeSpan&& other) noexcept;

  /// So many bytes more were read or written in it.
  void add_bytes(std::uint64_t bytes) noexcept { bytes_ += bytes; }
  /// Ends it now.
  void end() noexcept;

 private:
  std::shared_ptr<EventLog> log_;
  std::uint64_t number_ = 0;
  std::uint64_t bytes_ = 0;
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
  /// The configuration that it was made with.
  const Config& config() const noexcept;
  /// RuntimeOptions::world_name.
  const std::string& world_name() const noexcept;
  /// Transport::name of its control plane.
  std::string transport_name() const;
  /// The backend that serves buffers of `device`, or empty.
  std::string backend_name(DeviceKind device) const;

  // Process sets. The calls that make or remove one block until all its ranks have called, also if
  // the ranks are blocked in operations of other threads; not to be called from a callback. A
  // failure of one of them is a UsageError on all ranks that take part, and the job goes on.

  /// A set of these ranks, in this order: the first has rank 0 in it. Every rank of the group calls
  /// it, with the same ranks and in the same order as others of these calls.
  ProcessSet add_process_set(const std::vector<int>& ranks);

  /// The same, called by the members alone. Calls for the same ranks match in their order; `tag`
  /// distinguishes calls that may overtake each other. Ranks that create several must not wait for
  /// each other in a circle.
  ProcessSet create_process_set(const std::vector<int>& ranks, const std::string& tag = {});

  /// Every rank that made the set calls it. Refused, and the set stays, if a rank has an operation
  /// of it in flight.
  void remove_process_set(ProcessSet set);

  /// The sets that this rank made, with that of all ranks, in the order in which they were made.
  std::vector<ProcessSet> process_sets() const;
  /// The ranks of a set in its order. Throws UsageError if there is none.
  std::vector<int> ranks_of(ProcessSet set) const;
  /// This rank's number in a set; nothing if it is no member.
  std::optional<int> rank_in(ProcessSet set) const;
  /// The number of joins of this rank in a set (Collective::Join).
  std::uint64_t joins(ProcessSet set) const;

  /// Starts an operation and returns at once. Throws UsageError for what this rank alone can see to
  /// be wrong (duplicate name in flight, null buffer), GroupError if the group is dead.
  /// What only the ranks together can see is reported by the Work.
  Work submit(Request request);

  /// Starts several collectives (barriers, sends and recvs excepted) of one process set, all or
  /// none: they begin together once every rank has submitted the whole group, and if one of them is
  /// refused all are. Ranks match groups by the names in them, whatever their order; those without
  /// a name by the order of calls. Work::contributed() speaks of the group as a whole. Returns the
  /// handles in the order of `requests`. Throws as submit(), and then none is started.
  std::vector<Work> submit_group(std::vector<Request> requests);

  /// submit() and wait(), the fastest way (Request::caller_waits).
  void run(Request request);

  /// Prepares an operation that is started again and again. Nothing is sent. Of `request` the
  /// fields of Start are left out; a symmetric one starts fastest with the `output` given here.
  /// Throws UsageError as submit() does, and for a join.
  PersistentOp prepare(Request request);

  /// Ronde's thread sleeps until somebody calls, a message comes or a time limit passes.
  bool asleep() const noexcept;

  /// Collective and idempotent: lets operations that all ranks submitted finish, and process sets
  /// that other threads make, then stops. Sleeps until the last rank calls it, or for as long as
  /// RONDE_SHUTDOWN_TIMEOUT_S allows. Throws GroupError if the group dies in it, or has died and no
  /// call has thrown that, unless this rank has left or this thread is handling an exception.
  void shutdown() { shutdown(std::string()); }
  /// The same; rank 0 gets the `report` of each rank, in rank order, if the group did not die.
  std::vector<std::string> shutdown(std::string report);

  /// Leaves the group as the destructor does without a shutdown() before it, while others may still
  /// use this object: reports to the other ranks that this one left, and `why` if that is not
  /// empty, never blocks on them, and ends the waits of threads here with a GroupError; does
  /// nothing once the group has ended. Also while another thread is in shutdown(). Called in a
  /// callback it leaves the waits as they are. True if the group did not end by agreement.
  bool leave(const std::string& why = {}) noexcept;

  /// Fails the group on purpose: every rank gets a GroupError with this rank and `text`.
  void abort(const std::string& text);

  /// The GroupError that every operation throws since the group has failed; null if it has not.
  std::exception_ptr failure() const;

  /// The counters of this rank so far, by parts (docs/tuning.md and docs/notes/counters.md).
  Stats stats() const;
  /// A part of stats() that a library above the engine counts. `part` may be called by any thread
  /// and at any time, also after this object is gone; it must not throw.
  void add_stats(std::function<StatsGroup()> part);

  /// Where the time of this rank went since init. With RONDE_EVENTS=0: nothing but counters.
  Figures figures() const;
  /// A step of training has ended, in which the program worked on so many samples. RONDE_AUTOTUNE
  /// measures by the steps of rank 0.
  void mark_step(std::uint64_t samples = 0);
  /// The most recent events of this rank, oldest first. `lost`: how many came before.
  std::vector<Event> recent_events(std::uint64_t* lost = nullptr) const;
  /// How far rank 0's clock is ahead, early and late in the run; empty if it is not known. On rank
  /// 0's host the clock is the same.
  std::vector<ClockOffset> clock_offsets() const;
  /// `sink` gets all later events.
  void add_event_sink(std::shared_ptr<EventSink> sink);
  /// Returns once it has got the events so far; it gets no more.
  void remove_event_sink(const EventSink& sink);

  /// The memory of symmetric allreduces (Request::symmetric); null if the backend has none. It may
  /// outlive this object.
  std::shared_ptr<SymmetricHeap> symmetric_heap() const;

 private:
  friend class RuntimeSpan;
  std::shared_ptr<Engine> engine_;
};

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ronde/collective.h"
#include "ronde/config.h"
#include "ronde/dtype.h"
#include "ronde/error.h"
#include "ronde/figures.h"
#include "ronde/grid.h"
#include "ronde/init_options.h"
#include "ronde/options.h"
#include "ronde/persistent.h"
#include "ronde/plugin/factory.h"
#include "ronde/request.h"
#include "ronde/runtime.h"
#include "ronde/topology.h"
#include "ronde/work.h"
#include "ronde/world.h"

/// The free functions, and the default Runtime of this process, over MPI where Ronde was built with
/// it. A program that trains LibTorch models includes <ronde/torch.h> instead, which adds tensors.
///
/// Thread-safety: all may be called from any thread; init and shutdown not at the same time.
namespace ronde {

/// Joins the group of ranks that the launcher started (MPI's, torchrun, Slurm: docs/launching.md);
/// without a launcher, a group of one.
/// Reads RONDE_* (docs/tuning.md). Throws UsageError on nonsense in a variable, configurations that
/// differ between ranks, a foreign launcher, or if called twice; GroupError if a rank is missing.
/// Options must be equal on all ranks, except for those said to be of one rank.
void init(const InitOptions& options = {});

/// Waits for the saves of Checkpoints, then leaves the group together with all other ranks. Throws
/// a failed save's Error, or what Runtime::shutdown throws, which has `limit`, too: how long to
/// wait for the other ranks, in place of RONDE_SHUTDOWN_TIMEOUT_S. Does nothing if not initialised.
/// Where Ronde initialised MPI it also finalises it: no init() again (but if ranks meet without
/// MPI). MPI_Finalize() calls it where MPI may move data; it then throws what that call has thrown.
void shutdown(std::optional<std::chrono::nanoseconds> limit = {});

/// init(options), `program` and shutdown(), for `int main() { return ronde::main([] { ... }); }`.
/// Returns what `program` returned. Where one of the three throws, it prints "NAME: what()" to
/// standard error, NAME being that of the executable; fails the group by abort(what()), so that
/// every rank gets a GroupError with the reason; and returns 1. If the group failed before, for a
/// reason that what() does not give, it prints that as well.
int main(const std::function<int()>& program, const InitOptions& options = {});

/// The same for a program that returns nothing: 0.
template <typename Program>
requires std::is_void_v<std::invoke_result_t<Program&>>
int main(Program&& program, const InitOptions& options = {}) {
  const std::function<int()> with_status = [&program] {
    program();
    return 0;
  };
  return main(with_status, options);
}

/// Between init() and shutdown().
bool is_initialized() noexcept;

/// Whether the program had initialised MPI before the last init(). Ronde is then a guest, which
/// leaves the process as it is: docs/in_a_library.md. False before init().
bool is_guest() noexcept;

/// Whether this build of Ronde has a feature on this machine: "shm" (shared memory on one host),
/// "mpi", "ucx" (several hosts without MPI), "hierarchical" (shared memory and one of these),
/// "mpi_communicator" and "key_value" (see InitOptions), "streams" (Work::wait_on), "cuda" and
/// "nccl" (buffers on GPUs: its kernels were built, and the driver, or the driver and NCCL, can be
/// loaded and are new enough). False for everything else.
bool has_feature(std::string_view feature);

/// 0 where has_feature() is false. Of "cuda" the version of the driver (12080 is CUDA 12.8), of
/// "nccl" that of NCCL (22304 is 2.23.4); of others 1, and more once they can do more.
int feature_version(std::string_view feature);

/// Where this rank is in the group of all ranks: its number and how many there are; the same among
/// the ranks of its host; and among the ranks of all hosts that have its local rank. Throws
/// NotInitializedError before init and after shutdown.
/// @{
int rank();
int size();
int local_rank();
int local_size();
int cross_rank();
int cross_size();
/// @}
/// Every host has the same number of ranks.
bool is_homogeneous();
/// The reference is valid until shutdown().
const Topology& topology();

/// See the functions of these names of Runtime. Those that take no set use the default Runtime.
/// @{
ProcessSet add_process_set(const std::vector<int>& ranks);
ProcessSet create_process_set(const std::vector<int>& ranks, const std::string& tag = {});
void remove_process_set(ProcessSet set);
std::vector<ProcessSet> process_sets();
std::vector<int> ranks_of(ProcessSet set);
std::optional<int> rank_in(ProcessSet set);
/// @}

/// The default Runtime. The reference is valid until shutdown(). Throws NotInitializedError before
/// init and after shutdown.
Runtime& default_runtime();

/// The Runtime of the world that a set belongs to: the default one for those of ronde::init(). The
/// reference is valid until that world shuts down. Throws NotInitializedError where it does not
/// live.
Runtime& runtime_of(ProcessSet set);

/// Starts an operation on raw buffers: Runtime::submit of the world of its process set.
Work submit(Request request);

/// Starts several collectives, all or none: Runtime::submit_group of the world of their process
/// set.
std::vector<Work> submit_group(std::vector<Request> requests);

/// Prepares an operation that is started again and again: Runtime::prepare of the world of its
/// process set.
PersistentOp prepare(Request request);

/// submit() and wait(), the fastest way (Request::caller_waits).
void run(Request request);

/// Returns once every rank has called it.
void barrier(const BarrierOptions& options = {});
/// The same without waiting.
Work barrier_async(const BarrierOptions& options = {});

/// This rank has no more data: reductions and barriers of the others go on without it, until all
/// ranks of the set have joined. Returns the rank (within the set) that joined last.
/// RONDE_JOIN_AVERAGE sets the divisor of averages meanwhile. Other operations are refused on every
/// rank as long as any has joined.
int join(const JoinOptions& options = {});
/// The same without waiting: Work::last_rank() tells. Nothing can be submitted before it is done.
Work join_async(const JoinOptions& options = {});

// What follows speaks of the world of `set`: that of ronde::init() where none is given.

/// Fails the group on purpose: every rank gets a GroupError with this rank and `text`.
void abort(const std::string& text, ProcessSet set = kGlobalSet);

/// Returns the GroupError that every operation throws once the group has failed; null before.
std::exception_ptr failure(ProcessSet set = kGlobalSet);

/// Statistics of this rank, as a JSON object: "layout_version" (kStatsLayoutVersion), then parts,
/// each an object of counters (docs/tuning.md and docs/notes/counters.md), and "figures"
/// (docs/profiling.md): where the time went.
std::string stats(ProcessSet set = kGlobalSet);
/// The same figures, with the counters.
Figures figures(ProcessSet set = kGlobalSet);

/// A step of training has ended, in which this rank worked on so many samples. The optimizer of
/// <ronde/torch.h> calls it.
void mark_step(std::uint64_t samples = 0, ProcessSet set = kGlobalSet);

/// Records a number of the program at this time, such as its loss or accuracy, for the run report
/// (docs/notes/run_report.md) and the timeline. Throws UsageError for an empty name, or one of more
/// than kEventText bytes.
///
///     ronde::record("loss", loss.item<double>());
void record(std::string_view name, double value, ProcessSet set = kGlobalSet);

/// Something that the program does, from construction to destruction: it stands in the figures and
/// the timeline of the world of `set`. Does nothing before it is made and after its shutdown.
///
///     ronde::Span span("load batch");
///     span.set_file(path, offset);
///     span.add_bytes(file.read(buffer));
class Span {
 public:
  /// Begins a span of this name.
  explicit Span(std::string_view name, ProcessSet set = kGlobalSet);
  /// So many bytes more were read or written in it.
  void add_bytes(std::uint64_t bytes) noexcept { span_.add_bytes(bytes); }
  /// Its bytes are those of the file from `offset` on: timeline and `ronde prof export` name the
  /// file, or the last kEventText bytes of its path.
  void set_file(std::string_view path, std::uint64_t offset = 0) { span_.set_file(path, offset); }
  /// Ends it now.
  void end() noexcept { span_.end(); }

 private:
  RuntimeSpan span_;
};

/// Writes a timeline of this rank from now on, as RONDE_TIMELINE=`path` does from init on. Throws
/// UsageError if one is being written, Error if the file cannot be.
void start_timeline(const std::string& path, ProcessSet set = kGlobalSet);
/// Ends it. Throws UsageError if none is being written.
void stop_timeline(ProcessSet set = kGlobalSet);

/// Writes the most recent events of this rank, and what it waits for, into the folder RONDE_DUMP.
/// Throws UsageError if that is unset, Error if the file cannot be written.
void dump(ProcessSet set = kGlobalSet);

/// Adds a backend for the next init and later Worlds, to be chosen by name or by priority. Throws
/// UsageError if the name is taken or Ronde is initialised.
void register_backend(const std::string& name, BackendFactory factory);

/// Called when operations stall (StallCallback says when); for the next init and later Worlds.
void set_stall_callback(StallCallback callback);

/// Runs in every later init, not where a World is made, after the ranks have met, on the thread
/// that called init. This is how libraries above (ronde::torch) apply their own settings.
void add_init_hook(std::function<void(Runtime&)> hook);

}  // namespace ronde

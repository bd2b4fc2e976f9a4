// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/mpi/mpi.h"
#include "ronde/config.h"

// Note [MPI that Ronde may only start with]
// In a program that initialised MPI below MPI_THREAD_MULTIPLE only one thread at a time may call
// MPI, and Ronde cannot know when it may. But the program's thread is in ronde::init() while the
// ranks meet: that thread asks MPI for the ranks and exchanges their addresses. Ronde does not call
// MPI again until the next init(), so the program may use and finalize it. Data moves without MPI.

namespace ronde::mpi {

/// Every MPI function that Ronde calls; tests replace them. The defaults are the PMPI_ names: a
/// tool that intercepts MPI_ calls must not see, or re-enter, Ronde's.
///
/// Thread-safety: the functions are called under MpiEnvironment's lock.
struct MpiApi {
  template <typename Signature>
  using Call = std::function<Signature>;

  Call<decltype(PMPI_Initialized)> initialized = PMPI_Initialized;
  Call<decltype(PMPI_Finalized)> finalized = PMPI_Finalized;
  Call<decltype(PMPI_Init_thread)> init_thread = PMPI_Init_thread;
  Call<decltype(PMPI_Query_thread)> query_thread = PMPI_Query_thread;
  Call<decltype(PMPI_Is_thread_main)> is_thread_main = PMPI_Is_thread_main;
  Call<decltype(PMPI_Finalize)> finalize = PMPI_Finalize;
  /// Lets MPI_Finalize call `function` with `value` before it does anything else (MPI 4.0, 11.2.4).
  Call<int(MPI_Comm_delete_attr_function*, void*)> on_finalize =
      [](MPI_Comm_delete_attr_function* function, void* value) {
        int key = MPI_KEYVAL_INVALID;
        const int code = PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, function, &key, nullptr);
        return code == MPI_SUCCESS ? PMPI_Comm_set_attr(MPI_COMM_SELF, key, value) : code;
      };
  Call<decltype(PMPI_Get_library_version)> get_library_version = PMPI_Get_library_version;
  Call<decltype(PMPI_Error_string)> error_string = PMPI_Error_string;

  Call<MPI_Comm(MPI_Fint)> comm_f2c = [](MPI_Fint handle) {
    return PMPI_Comm_f2c(handle);  // a macro in some libraries
  };
  Call<decltype(PMPI_Comm_test_inter)> comm_test_inter = PMPI_Comm_test_inter;
  Call<decltype(PMPI_Comm_rank)> comm_rank = PMPI_Comm_rank;
  Call<decltype(PMPI_Comm_size)> comm_size = PMPI_Comm_size;
  Call<decltype(PMPI_Comm_idup)> comm_idup = PMPI_Comm_idup;
  Call<decltype(PMPI_Comm_free)> comm_free = PMPI_Comm_free;
  Call<decltype(PMPI_Comm_get_attr)> comm_get_attr = PMPI_Comm_get_attr;
  Call<decltype(PMPI_Comm_set_errhandler)> comm_set_errhandler = PMPI_Comm_set_errhandler;
  Call<decltype(PMPI_Comm_get_errhandler)> comm_get_errhandler = PMPI_Comm_get_errhandler;
  Call<decltype(PMPI_Errhandler_free)> errhandler_free = PMPI_Errhandler_free;
  Call<decltype(PMPI_Comm_group)> comm_group = PMPI_Comm_group;
  Call<decltype(PMPI_Group_incl)> group_incl = PMPI_Group_incl;
  Call<decltype(PMPI_Group_free)> group_free = PMPI_Group_free;
  Call<decltype(PMPI_Comm_create_group)> comm_create_group = PMPI_Comm_create_group;
  Call<decltype(PMPI_Op_create)> op_create = PMPI_Op_create;
  Call<decltype(PMPI_Op_free)> op_free = PMPI_Op_free;

  Call<decltype(PMPI_Iallreduce)> iallreduce = PMPI_Iallreduce;
  Call<decltype(PMPI_Ibcast)> ibcast = PMPI_Ibcast;
  Call<decltype(PMPI_Ireduce_scatter)> ireduce_scatter = PMPI_Ireduce_scatter;
  Call<decltype(PMPI_Ialltoallv)> ialltoallv = PMPI_Ialltoallv;
  Call<decltype(PMPI_Isend)> isend = PMPI_Isend;
  Call<decltype(PMPI_Irecv)> irecv = PMPI_Irecv;
  Call<decltype(PMPI_Iallgather)> iallgather = PMPI_Iallgather;
  Call<decltype(PMPI_Iallgatherv)> iallgatherv = PMPI_Iallgatherv;
  Call<decltype(PMPI_Test)> test = PMPI_Test;
  Call<decltype(PMPI_Testsome)> testsome = PMPI_Testsome;
  Call<decltype(PMPI_Iprobe)> iprobe = PMPI_Iprobe;
  Call<decltype(PMPI_Get_count)> get_count = PMPI_Get_count;
};

/// Returns "MPI_Iallreduce failed with code 15: <the library's own text>".
std::string failure_text(const MpiApi& api, const char* call, int code);

using Clock = std::chrono::steady_clock;

/// When Ronde calls an MPI that the program has initialised: from a thread of its own until it
/// leaves, or within init only.
enum class MpiUse { Always, ToMeet };

/// The MPI of this process, shared by transport and backend: initialises MPI or joins the program's
/// own, serialises every call, and finalises MPI if Ronde initialised it.
///
/// Thread-safety: all members may be called from any thread.
class MpiEnvironment : public std::enable_shared_from_this<MpiEnvironment> {
 public:
  MpiEnvironment(MpiApi api, EnvironmentLookup variables)
      : api_(std::move(api)), variables_(std::move(variables)) {}
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// The environment of the MPI library that is linked. Never destroyed, as MPI lives as long as
  /// the process.
  static std::shared_ptr<MpiEnvironment> of_process();

  /// Initialises MPI unless the program has. Blocks until all of the launcher's ranks, or `ranks`,
  /// have called it; MPI has no deadline for that. Throws UsageError if MPI was finalised, offers
  /// too low a thread level, was started by a launcher that it does not support, or has no such
  /// `ranks`; with MpiUse::ToMeet also on a thread that may not call MPI. A second member has the
  /// ranks of the first.
  void join(const MpiRanks& ranks = {}, MpiUse use = MpiUse::Always);

  /// Ends a join(). MPI is finalised if Ronde initialised it and all members have left gracefully;
  /// otherwise finalising would wait for dead ranks.
  void leave(bool graceful);

  /// Has MPI_Finalize() call `function`, on the program's thread and while MPI still works. Null
  /// removes it.
  void on_program_finalize(std::function<void()> function);

  /// Never finalises MPI from here on, as operations are in progress that will not finish.
  void abandon() noexcept;

  /// Whether a rank that finalises MPI may wait for one that sent it nothing: Note [Finalizing over
  /// TCP].
  bool closing_asks_peers() const;

  /// Whether Ronde initialised MPI.
  bool owns_mpi() const noexcept { return owns_mpi_; }
  /// The MPI that the program initialised; empty if Ronde did, or if MPI has not begun or has
  /// ended.
  ProgramMpi of_program() const;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// The first line of the library's version text, such as "MPICH Version: 4.0.2".
  std::string library_version() const;

  /// Makes a communicator of all ranks that returns errors. Collective. Throws GroupError if not
  /// all ranks have called it by `deadline`.
  MPI_Comm duplicate(Clock::time_point deadline);
  void free(MPI_Comm& communicator);

  /// The communicator of all ranks that carries the messages of process sets (MpiFabric). Null
  /// before the transport has made it, and after the transport has freed it.
  void set_message_communicator(MPI_Comm communicator);
  MPI_Comm message_communicator() const;
  /// The largest tag of a message.
  int largest_tag() const;

  /// Calls `function` under the lock; throws ronde::Error with the library's text if it fails.
  template <typename Function, typename... Args>
  void call(const char* name, const Function& function, Args... args) {
    const std::lock_guard lock(mutex_);
    expect_not_finalized();
    check(name, function(args...));
  }

  /// Whether `request` is finished. Throws ronde::Error if it failed.
  bool test(MPI_Request& request);

  /// A request that has finished, by MPI_Testsome.
  struct Finished {
    std::size_t index = 0;
    int received_bytes = 0;  ///< if it is a receive of MPI_BYTE
    std::string error;       ///< MPI's text if it failed
  };
  /// Returns those of `requests` that have finished since the last call. Throws ronde::Error if MPI
  /// fails.
  std::vector<Finished> test_some(std::span<MPI_Request> requests);

  /// Lets MPI advance its messages, by a probe.
  void progress(MPI_Comm communicator);

  /// Waits without keeping a core busy; false once `deadline` has passed.
  bool wait(MPI_Request& request, Clock::time_point deadline);

  const MpiApi& api() const noexcept { return api_; }

  /// Throws a GroupError: "rank 3 waited 120 s for all 4 ranks to <what>: ...".
  [[noreturn]] void fail_waiting(const std::string& what, std::chrono::seconds waited) const;

 private:
  class ErrorsReturned;

  void check(const char* name, int code) const;
  void watch_finalize();
  void handle_finalize();
  void expect_not_finalized() const;
  void initialize();
  int level_of_program() const;
  /// Throws UsageError if the program's thread level is too low for `use`, or if this is not the
  /// thread that it allows to call MPI.
  void check_level_of_program(MpiUse use) const;
  void refuse_foreign_launcher() const;
  void use_all_ranks();
  void use_communicator(int handle);
  void use_ranks_of_world(const std::vector<int>& ranks);

  const MpiApi api_;
  const EnvironmentLookup variables_;
  mutable std::mutex mutex_;  ///< held in every call of MPI; guards what follows
  int rank_ = 0;              ///< constant once joined
  int size_ = 1;              ///< constant once joined
  int members_ = 0;
  MPI_Comm ranks_ = MPI_COMM_WORLD;  ///< all ranks of the group
  bool owns_ranks_ = false;
  MPI_Comm messages_ = MPI_COMM_NULL;
  std::function<void()> on_program_finalize_;
  std::atomic<bool> owns_mpi_{false};  ///< Ronde initialised it
  int provided_ = MPI_THREAD_SINGLE;   ///< the thread level that Ronde got
  bool may_finalize_ = true;
  bool abandoned_ = false;
  bool watches_finalize_ = false;
  bool program_finalizes_ = false;      ///< leave() must not finalize
  bool program_finalized_ = false;      ///< MPI must no longer be called
  std::atomic<bool> finalizes_{false};  ///< leave() is in MPI_Finalize
};

/// One join() of an environment. Its destructor leaves ungracefully, unless leave() was called.
class MpiMembership {
 public:
  explicit MpiMembership(std::shared_ptr<MpiEnvironment> environment, const MpiRanks& ranks = {},
                         MpiUse use = MpiUse::Always);
  ~MpiMembership();
  MpiMembership(const MpiMembership&) = delete;
  MpiMembership& operator=(const MpiMembership&) = delete;

  MpiEnvironment& operator*() const noexcept { return *environment_; }
  MpiEnvironment* operator->() const noexcept { return environment_.get(); }
  const std::shared_ptr<MpiEnvironment>& environment() const noexcept { return environment_; }

  void leave(bool graceful);

 private:
  std::shared_ptr<MpiEnvironment> environment_;
  bool joined_ = false;
};

/// Keeps memory until the process ends, because MPI may still write to it.
void keep_until_exit(std::shared_ptr<void> memory);

/// The variable of UCX that Ronde sets for MPI, and its value; nullptr: none.
std::pair<const char*, const char*> variable_for_ucx(const EnvironmentLookup& variables,
                                                     bool has_rdma);

}  // namespace ronde::mpi

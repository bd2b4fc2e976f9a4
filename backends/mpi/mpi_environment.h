// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/mpi/mpi.h"
#include "backends/mpi/mpi_api.h"
#include "backends/mpi/thread_level.h"
#include "backends/vendor/wrapped_calls.h"
#include "ronde/config.h"

namespace ronde::mpi {

using Clock = std::chrono::steady_clock;

/// This process's MPI, shared by transport and backend: initialises it or joins the program's own,
/// serialises every call, and finalises it if Ronde initialised it.
///
/// Thread-safety: all members may be called from any thread.
class MpiEnvironment : public std::enable_shared_from_this<MpiEnvironment> {
 public:
  MpiEnvironment(MpiApi api, EnvironmentLookup variables)
      : api_(std::move(api)), variables_(std::move(variables)) {}
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// The one for the MPI library that is linked. Never destroyed, as MPI itself lives as long as
  /// the process.
  static std::shared_ptr<MpiEnvironment> of_process();

  /// Initialises MPI unless it is. Blocks until the launcher's other ranks do so, too (MPI knows no
  /// deadline for that), or the other `ranks`. Throws UsageError if MPI was finalised, offers too
  /// low a thread level, was started by a launcher that it does not understand, or has no such
  /// `ranks`, or if this is not the thread that may call it, where `use` is to meet. A second
  /// member has the ranks of the first.
  void join(const MpiRanks& ranks = {}, MpiUse use = MpiUse::Always);

  /// Ends what join() began. Once all who joined have left gracefully, MPI is finalised, if Ronde
  /// initialised it. Otherwise it is left as it is: finalising would wait for dead ranks.
  void leave(bool graceful);

  /// MPI_Finalize() of the program will call `function`, on its thread and while MPI still works.
  /// Null takes that back.
  void on_program_finalize(std::function<void()> function);

  /// Operations are in progress that will never finish: MPI must never be finalised.
  void abandon() noexcept;

  /// Whether leave() finalises MPI in a way in which a rank may wait for one that sent it nothing.
  bool closing_asks_peers() const;

  /// Ronde initialised MPI.
  bool owns_mpi() const noexcept { return owns_mpi_; }
  /// Nothing where it did.
  ProgramMpi of_program() const;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// "MPICH Version: 4.0.2": the first line of what the library says.
  std::string library_version() const;

  /// A communicator of all ranks, whose errors are returned. Collective. Throws GroupError if the
  /// others do not come until `deadline`.
  MPI_Comm duplicate(Clock::time_point deadline);
  void free(MPI_Comm& communicator);

  /// The communicator of all ranks that carries the messages of process sets (MpiFabric). Null
  /// before the transport has made one, and after it has freed it.
  void set_message_communicator(MPI_Comm communicator);
  MPI_Comm message_communicator() const;
  /// The largest tag that a message may bear.
  int largest_tag() const;

  /// Calls `function` under the lock; throws ronde::Error with the library's text if it fails.
  template <typename Function, typename... Args>
  void call(const char* name, const Function& function, Args... args) {
    const std::lock_guard lock(mutex_);
    expect_not_finalized();
    const auto make = [&] { check(name, function(args...)); };
    wrappers_.empty() ? make() : call_within(0, make);
  }

  /// vendor::WrapCalls of what call() and test() make: MPI may go on with any message in any
  /// of them. What it returns must not outlive the environment, nor be destroyed within `around`.
  std::unique_ptr<vendor::WrappedCalls> wrap_calls(vendor::CallWrapper around);

  /// Whether `request` is finished. Throws ronde::Error if it failed.
  bool test(MPI_Request& request);

  /// A request that has finished, by MPI_Testsome.
  struct Finished {
    std::size_t index = 0;
    int received_bytes = 0;  ///< of a receive of MPI_BYTE
    std::string error;       ///< what MPI says if it failed
  };
  /// Those of `requests` that have finished since the last time. Throws ronde::Error if that cannot
  /// be found out.
  std::vector<Finished> test_some(std::span<MPI_Request> requests);

  /// Lets MPI advance what it has taken over, by asking it whether a message has come.
  void progress(MPI_Comm communicator);

  /// Waits without burning a core; false once `deadline` has passed.
  bool wait(MPI_Request& request, Clock::time_point deadline);

  const MpiApi& api() const noexcept { return api_; }

  /// "rank 3 waited 120 s for all 4 ranks to <what>: ..." as a GroupError.
  [[noreturn]] void fail_waiting(const std::string& what, std::chrono::seconds waited) const;

 private:
  class ErrorsReturned;
  class Wrapping;

  void call_within(std::size_t next, const std::function<void()>& make) const;
  void check(const char* name, int code) const;
  void watch_finalize();
  void note_finalize();
  void expect_not_finalized() const;
  void initialize();
  void refuse_foreign_launcher() const;
  void take_all_ranks();
  void take_communicator(int handle);
  void take_ranks_of_world(const std::vector<int>& ranks);

  const MpiApi api_;
  const EnvironmentLookup variables_;
  mutable std::mutex mutex_;  ///< around every call of MPI, and guards what follows
  int rank_ = 0;              ///< constant once joined
  int size_ = 1;              ///< constant once joined
  int members_ = 0;
  MPI_Comm ranks_ = MPI_COMM_WORLD;  ///< all ranks of the group
  bool owns_ranks_ = false;
  MPI_Comm messages_ = MPI_COMM_NULL;
  std::function<void()> on_program_finalize_;
  std::vector<const vendor::CallWrapper*> wrappers_;  ///< the outermost first
  std::atomic<bool> owns_mpi_{false};                 ///< Ronde initialised it
  int provided_ = MPI_THREAD_SINGLE;                  ///< the thread level then, if so
  bool may_finalize_ = true;
  bool abandoned_ = false;
  bool watches_finalize_ = false;
  bool program_finalizes_ = false;      ///< so leave() does not
  bool program_finalized_ = false;      ///< MPI must not be called any more
  std::atomic<bool> finalizes_{false};  ///< leave() does
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

/// Keeps memory that MPI may write to after Ronde gave an operation up.
void keep_for_ever(std::shared_ptr<void> memory);

/// Whether all ranks run on this host; nothing where the launcher does not say.
std::optional<bool> launched_on_one_host(const EnvironmentLookup& variables);

/// The variable of UCX, on which MPI may run, that suits these ranks, and its value; nullptr: none.
std::pair<const char*, const char*> variable_for_ucx(const EnvironmentLookup& variables,
                                                     bool has_rdma);

}  // namespace ronde::mpi

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "backends/nccl/nccl_api.h"

namespace ronde::nccl {

/// A communicator of NCCL's that never blocks its caller (ncclConfig_t::blocking is 0): a call that
/// NCCL does not finish at once goes on in its threads, and is asked for. So a peer that does not
/// come, or is gone, is an error within bounds and not a hang.
///
/// Thread-safety: one thread at a time, but is_issued() and is_open(): any, at any time.
class NonBlockingCommunicator {
 public:
  using Clock = std::chrono::steady_clock;

  /// Begins to connect `size` ranks, of which this is `rank`: `id` is the same on all. The context
  /// of the rank's GPU is current. `deadline`: when all have to be there. Throws NcclError.
  NonBlockingCommunicator(std::shared_ptr<const NcclApi> api, const UniqueId& id, int size,
                          int rank, Clock::time_point deadline);
  /// Aborts it unless it was closed.
  ~NonBlockingCommunicator();
  NonBlockingCommunicator(const NonBlockingCommunicator&) = delete;
  NonBlockingCommunicator& operator=(const NonBlockingCommunicator&) = delete;

  const NcclApi& api() const noexcept { return *api_; }
  const std::shared_ptr<const NcclApi>& shared_api() const noexcept { return api_; }
  Communicator handle() const noexcept { return handle_; }

  /// Whether all ranks have come, so that it can be used. Throws NcclError if NCCL fails, and Error
  /// with the ranks' number if they have not come at the deadline.
  bool is_connected() const;

  /// Takes the result of a call on this communicator, such as ncclAllReduce or ncclGroupEnd: throws
  /// NcclError unless it has succeeded or goes on. `doing`: for the text.
  void check(const char* symbol, Result result, const std::string& doing) const;

  /// The same, and where the call goes on waits for its end: for those that need no other rank.
  /// Throws Error if it has not ended at the deadline.
  void finish(const char* symbol, Result result, const std::string& doing,
              Clock::time_point deadline) const;

  /// Whether what was called last has been issued, so that the next call is allowed, and its work
  /// is in the stream. Throws NcclError if it failed, or if anything that was issued earlier did
  /// since; Error once it was aborted.
  bool is_issued(const std::string& doing) const;

  /// Neither closed nor aborted.
  bool is_open() const;

  /// Ends a healthy one: all ranks call it, nothing is in progress. Throws NcclError, or Error at
  /// the deadline.
  void close(Clock::time_point deadline);

  /// Ends what is in progress, whatever it waits for. NCCL's abort may itself hang where the GPU
  /// does, so a thread of its own calls it, and is left to itself, with all that it needs, if that
  /// does not return. What was aborted or closed already is left alone.
  void begin_abort() noexcept;
  /// Whether what begin_abort() began has returned, for which it waits until the deadline. False
  /// also where no thread could be started.
  bool has_aborted(Clock::time_point deadline) noexcept;
  /// Both.
  bool abort(std::chrono::nanoseconds bound) noexcept;

 private:
  enum class State { Open, Aborted, Closed };

  /// Whether NCCL goes on with it, if it has not failed.
  bool goes_on(const char* symbol, Result result, const std::string& doing) const;
  /// Waits for it then; false if it has not ended at the deadline.
  bool ends(const char* symbol, Result result, const std::string& doing,
            Clock::time_point deadline) const;

  const std::shared_ptr<const NcclApi> api_;
  const int size_;
  const Clock::time_point deadline_;
  Communicator handle_ = nullptr;
  /// Held while NCCL is asked, as the handle ends with the state.
  mutable std::mutex mutex_;
  State state_ = State::Open;   ///< guarded by mutex_
  std::future<void> aborting_;  ///< once it was begun
  bool was_abort_begun_ = false;
};

}  // namespace ronde::nccl

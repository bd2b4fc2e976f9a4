// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "backends/nccl/nccl_api.h"

namespace ronde::nccl {

/// A communicator of NCCL's that never blocks its caller (ncclConfig_t::blocking is 0): a call that
/// NCCL does not finish at once goes on in its threads, and is asked for. So a peer that does not
/// come, or is gone, is an error within bounds and not a hang.
///
/// Thread-safety: one thread at a time.
class NonBlockingCommunicator {
 public:
  using Clock = std::chrono::steady_clock;

  /// What tells the group's death: called while there is something to wait for, throws then. It may
  /// sleep for a moment; NCCL has nothing that could be waited on.
  using Watch = std::function<void()>;

  /// Collective over `size` ranks, of which this is `rank`: `id` is the same on all. The context of
  /// the rank's GPU is current. Throws NcclError if NCCL fails, and Error with the ranks' number if
  /// they have not all come at `deadline`; NCCL's part is then aborted.
  NonBlockingCommunicator(std::shared_ptr<const NcclApi> api, const UniqueId& id, int size,
                          int rank, Clock::time_point deadline, const Watch& watch);
  /// Aborts it unless it was closed.
  ~NonBlockingCommunicator();
  NonBlockingCommunicator(const NonBlockingCommunicator&) = delete;
  NonBlockingCommunicator& operator=(const NonBlockingCommunicator&) = delete;

  const NcclApi& api() const noexcept { return *api_; }
  Communicator handle() const noexcept { return handle_; }

  /// Takes the result of a call on this communicator, such as ncclAllReduce or ncclGroupEnd: throws
  /// NcclError unless it has succeeded or goes on. `doing`: for the text.
  void check(const char* symbol, Result result, const std::string& doing) const;

  /// Whether what was called last has been issued, so that the next call is allowed. Throws
  /// NcclError if it failed, or if anything that was issued earlier did since.
  bool is_issued(const std::string& doing) const;

  /// Ends a healthy one: all ranks call it, nothing is in progress. Throws NcclError, or Error at
  /// the deadline.
  void close(Clock::time_point deadline, const Watch& watch);

  /// Ends what is in progress, whatever it waits for. NCCL's abort may itself hang where the GPU
  /// does, so a thread of its own calls it: false if that has not returned after `bound`, or could
  /// not be started. It is left to itself then, with all that it needs. What was aborted or closed
  /// already is left alone.
  bool abort(std::chrono::nanoseconds bound) noexcept;

 private:
  enum class State { Open, Aborted, Closed };

  /// Waits until NCCL has done what it was told. `missed`: what is said at the deadline.
  void wait_until_issued(const std::string& doing, const std::string& missed,
                         Clock::time_point deadline, const Watch& watch);
  /// Whether NCCL goes on with it, if it has not failed.
  bool goes_on(const char* symbol, Result result, const std::string& doing) const;

  const std::shared_ptr<const NcclApi> api_;
  Communicator handle_ = nullptr;
  State state_ = State::Open;
};

}  // namespace ronde::nccl

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "backends/nccl/nccl_api.h"

namespace ronde::nccl {

/// A communicator of NCCL whose calls block until the other ranks make theirs. One thread makes the
/// calls (IssuingThread); another one ends a call that does not return, by abort.
///
/// Thread-safety: connect(), Use and close(): one thread. The rest: full.
class BlockingCommunicator {
 public:
  using Clock = std::chrono::steady_clock;

  /// `size`: the number of ranks.
  BlockingCommunicator(std::shared_ptr<const NcclApi> api, int size);
  /// Aborts it unless it is closed.
  ~BlockingCommunicator();

  const NcclApi& api() const noexcept { return *api_; }
  const std::shared_ptr<const NcclApi>& shared_api() const noexcept { return api_; }

  /// Blocks until all ranks have called it, of which this is `rank`; `id` is equal on all. The
  /// context of the rank's GPU must be current. Nothing ends this call: if the communicator is
  /// aborted meanwhile, this call aborts it before it returns. Throws NcclError, or Error if it was
  /// aborted.
  void connect(const UniqueId& id, int rank);

  /// Allows calls while it lives; an abort waits a moment for their end. Throws Error if the
  /// communicator is not open.
  class Use {
   public:
    Use(const BlockingCommunicator& communicator, const std::string& doing);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Communicator handle() const noexcept;

   private:
    const BlockingCommunicator& communicator_;
  };

  /// Makes a call on this communicator. Throws NcclError unless it succeeds.
  template <typename... Arguments, typename... Given>
  void call(const std::string& doing, const vendor::Entry<Result, Arguments...>& function,
            Given... given) const {
    check(function.symbol(), function(given...), doing);
  }
  /// Checks the result of a call that was made. Throws likewise.
  void check(const char* symbol, Result result, const std::string& doing) const;

  /// Throws NcclError if issued work has failed, Error if the communicator was aborted.
  void watch(const std::string& doing) const;

  /// Closes it once all ranks do. Throws NcclError, or Error if it was aborted.
  void close();

  /// Ends calls and work in progress, unless the communicator was aborted or closed before. NCCL's
  /// abort may hang if the GPU does, so a thread of its own calls it, which is left alone, with all
  /// that it uses, if the call does not return.
  void begin_abort() noexcept;
  /// Waits until `deadline` for the abort; returns whether it has returned. Without a thread for
  /// it: false.
  bool has_aborted(Clock::time_point deadline) noexcept;

 private:
  enum class Stage { Connecting, Open, Aborted, Closed };
  struct State;
  void require_open(const std::string& doing) const;

  const std::shared_ptr<const NcclApi> api_;
  const int size_;
  const std::shared_ptr<State> state_;  ///< shared with the thread that aborts
  std::future<void> aborting_;          ///< used by one thread, which aborts
  bool was_abort_begun_ = false;
};

}  // namespace ronde::nccl

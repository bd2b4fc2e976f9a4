// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "backends/nccl/nccl_api.h"

namespace ronde::nccl {

/// A communicator of NCCL's whose calls block until the other ranks make theirs. One thread makes
/// them (IssuingThread), and another one ends a call that does not return: by abort.
///
/// Thread-safety: connect(), Use and close(): one thread. The rest: full.
class BlockingCommunicator {
 public:
  using Clock = std::chrono::steady_clock;

  /// Of `size` ranks.
  BlockingCommunicator(std::shared_ptr<const NcclApi> api, int size);
  /// Aborts it unless it was closed.
  ~BlockingCommunicator();
  BlockingCommunicator(const BlockingCommunicator&) = delete;
  BlockingCommunicator& operator=(const BlockingCommunicator&) = delete;

  const NcclApi& api() const noexcept { return *api_; }
  const std::shared_ptr<const NcclApi>& shared_api() const noexcept { return api_; }

  /// Blocks until all ranks have come, of which this is `rank`; `id` is the same on all. The
  /// context of the rank's GPU is current. Nothing ends this call: where the communicator is
  /// aborted meanwhile, its own thread aborts it once the call returns. Throws NcclError, or Error
  /// if it was aborted.
  void connect(const UniqueId& id, int rank);

  /// While it lives, calls may be made, and an abort waits a moment for their end. Throws Error
  /// once the communicator was aborted.
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
  /// Takes the result of one: the same.
  void check(const char* symbol, Result result, const std::string& doing) const;

  /// Throws NcclError if anything that was issued has failed since, Error once it was aborted.
  void watch(const std::string& doing) const;

  /// Ends a healthy one, once all ranks do. Throws NcclError, or Error if it was aborted.
  void close();

  /// Ends what is in progress, whatever it waits for. NCCL's abort may itself hang where the GPU
  /// does, so a thread of its own calls it, and is left to itself, with all that it needs, if that
  /// does not return. What was aborted or closed already is left alone.
  void begin_abort() noexcept;
  /// Whether what begin_abort() began has returned, for which it waits until the deadline. False
  /// also where no thread could be started.
  bool has_aborted(Clock::time_point deadline) noexcept;

 private:
  enum class Stage { Connecting, Open, Aborted, Closed };
  struct State;
  void require_open(const std::string& doing) const;

  const std::shared_ptr<const NcclApi> api_;
  const int size_;
  const std::shared_ptr<State> state_;  ///< also of the thread that aborts
  std::future<void> aborting_;          ///< of who aborts: one thread
  bool was_abort_begun_ = false;
};

}  // namespace ronde::nccl

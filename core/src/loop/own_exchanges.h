// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/loop/set_engines.h"
#include "core/src/op/submission_queue.h"
#include "core/src/op/work_state.h"

namespace ronde {

/// An exchange that this rank has asked for, until it is over.
struct OwnExchange {
  ExchangeRequest request;
  std::shared_ptr<WorkState> work;
  std::chrono::steady_clock::time_point since{};
  // Written before the work completes.
  ExchangeReply reply;
  MadeSet removed;  ///< what is left of a set that is no more
};

/// Carries exchanges and new sets from threads of this rank to the loop, and the replies of rank 0
/// back to the threads.
///
/// Thread-safety: as marked.
class OwnExchanges {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Everything that the loop takes at once.
  struct News {
    std::vector<MadeSet> made;              ///< to be installed first
    std::vector<ExchangeRequest> requests;  ///< for rank 0
  };

  explicit OwnExchanges(SubmissionQueue& queue) : queue_(queue) {}

  // Any thread.

  /// Asks for `own`, whose work completes when the exchange is over. Throws once the loop has
  /// ended, and for a call of the program the reason of the queue's close().
  void ask(std::shared_ptr<OwnExchange> own);
  /// Gives a set to the loop, which installs it. Aborts its backends and throws once the loop has
  /// ended.
  void install(MadeSet made);
  /// There is something for the loop to take.
  bool has_news() const noexcept { return has_news_.load(); }

  // Where the loop runs.

  /// Calls of the program are waiting: a shutdown comes after them.
  bool asks_for_sets() const;
  /// Takes all, except the removal of a set that is `busy(id)`, maybe with operations of others if
  /// this rank has joined.
  News take(const std::function<bool(std::uint32_t)>& busy, TimePoint now);
  std::vector<MadeSet> take_made();
  /// A reply has come to `rank`, this one: ends its exchange. `removed`: what is left of a set that
  /// is no more.
  void finish(const ExchangeReply& reply, int rank, MadeSet removed);
  /// The loop has ended: ends all exchanges, and takes no more.
  void end(std::exception_ptr error) noexcept;
  /// Since when the oldest one has waited for rank 0.
  std::optional<TimePoint> oldest() const;

 private:
  SubmissionQueue& queue_;
  std::atomic<bool> has_news_{false};                              ///< asked_ or made_ is not empty
  std::map<ExchangeKey, std::shared_ptr<OwnExchange>> under_way_;  ///< of whoever runs the loop

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<OwnExchange>> asked_;
  std::vector<MadeSet> made_;
  std::exception_ptr ended_;  ///< why nothing is taken, once the loop has ended
};

}  // namespace ronde

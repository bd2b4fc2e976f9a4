// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/src/agree/messages.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/group/control_tree.h"
#include "core/src/group/engine_life.h"
#include "core/src/loop/backend_maker.h"
#include "core/src/loop/set_engines.h"
#include "core/src/op/set_info.h"
#include "core/src/op/submission_queue.h"
#include "core/src/op/work_state.h"
#include "ronde/log.h"
#include "ronde/process_set.h"

namespace ronde {

class Loop;

/// An exchange that this rank has requested and that has not ended.
struct OwnExchange {
  ExchangeRequest request;
  /// With FinishSet the parts of the set that was made, for the loop; once the work has completed
  /// those of a set that was removed.
  MadeSet parts;
  std::shared_ptr<WorkState> work;
  TimePoint since{};
  ExchangeReply reply = {};  ///< written before the work completes
};

/// Carries exchanges from threads of this rank to the loop, and the replies of rank 0 back to the
/// threads.
///
/// Thread-safety: as marked.
class OwnExchanges {
 public:
  explicit OwnExchanges(SubmissionQueue& queue) : queue_(queue) {}

  // Any thread.

  /// Requests `own`, whose work completes when the exchange has ended. Once the loop has ended it
  /// aborts backends of `own` and throws. For a call of the program it also throws the reason of
  /// the queue's close().
  void ask(std::shared_ptr<OwnExchange> own);
  /// Returns whether the loop has something to take.
  bool has_news() const noexcept { return has_news_.load(); }

  // Only where the loop runs.

  /// Returns whether calls of the program are waiting, which precede a shutdown.
  bool asks_for_sets() const;
  /// Returns all that were requested since the last call, except the removal of a set that is
  /// `busy(id)`, perhaps with operations of other ranks while this one has joined.
  std::vector<std::shared_ptr<OwnExchange>> take(const std::function<bool(std::uint32_t)>& busy,
                                                 TimePoint now);
  /// Ends the exchange that `reply` to `rank`, this one, is for. `removed`: the parts of a set that
  /// was removed.
  void finish(const ExchangeReply& reply, int rank, MadeSet removed);
  /// Ends all exchanges, as the loop has ended, and refuses further ones.
  void end(std::exception_ptr error) noexcept;
  /// Returns since when the oldest exchange has waited for rank 0.
  std::optional<TimePoint> oldest() const {
    std::optional<TimePoint> oldest;
    for (const auto& [key, own] : under_way_) oldest = earlier(oldest, own->since);
    return oldest;
  }

 private:
  SubmissionQueue& queue_;
  std::atomic<bool> has_news_{false};                              ///< asked_ is not empty
  std::map<ExchangeKey, std::shared_ptr<OwnExchange>> under_way_;  ///< only where the loop runs

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<OwnExchange>> asked_;
  std::exception_ptr ended_;  ///< why requests are refused, once the loop has ended
};

/// Makes and removes process sets.
///
/// Note [Making a process set]
/// The thread that calls for a set makes it, so that the loop keeps running. It communicates with
/// the other ranks by exchanges through rank 0. First all callers agree on the ranks, and rank 0
/// numbers the set (every rank between rank 0 and a member receives it, to forward messages). Then
/// the members make its backends, with as many exchanges as these need. Finally all callers report
/// the outcome; only then are operations of the set accepted. One exchange removes a set: every
/// rank reports what it still has in flight there. A set that is being made is finished even if
/// another thread calls shutdown meanwhile: rank 0 waits for it (ExchangeCoordinator::makes_sets).
///
/// Thread-safety: every member may be called from any thread, but not where the loop runs, as
/// add(), create() and remove() wait for it.
class ProcessSetMaker {
 public:
  /// Parts of the engine, which outlive this.
  struct Parts {
    const ControlTree& tree;
    SetTable& table;
    BackendMaker& backends;
    OwnExchanges& exchanges;
    SubmissionQueue& queue;
    const Loop& loop;
    const EngineLife& life;
  };

  /// To be called once the group has started.
  ProcessSetMaker(const Parts& parts, std::weak_ptr<WaitHelper> engine,
                  std::shared_ptr<Logger> log);

  // add(), create() and remove() block until all ranks of the set have called them.
  ProcessSet add(const std::vector<int>& ranks);
  ProcessSet create(const std::vector<int>& ranks, const std::string& tag);
  void remove(ProcessSet set);

 private:
  ProcessSet make_set(const ExchangeKey& key, const std::vector<int>& ranks);
  void finish_set(const ExchangeKey& key, const std::string& error, MadeSet made);
  void expect_callable(const char* function) const;
  std::shared_ptr<OwnExchange> meet(ExchangeKey key, std::string blob);
  std::shared_ptr<OwnExchange> ask(ExchangeKey key, std::string blob, MadeSet made = {});
  std::vector<int> everybody() const { return parts_.table.at(kGlobalSet)->ranks; }

  const Parts parts_;
  const std::weak_ptr<WaitHelper> engine_;
  const std::shared_ptr<Logger> log_;
  std::atomic<std::uint64_t> added_{0};
};

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/src/group/control_tree.h"
#include "core/src/group/engine_life.h"
#include "core/src/loop/backend_maker.h"
#include "core/src/loop/loop.h"
#include "core/src/loop/own_exchanges.h"
#include "core/src/op/set_info.h"
#include "core/src/op/submission_queue.h"
#include "core/src/op/work_state.h"
#include "ronde/log.h"
#include "ronde/process_set.h"

namespace ronde {

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
  struct Dependencies {
    const ControlTree& tree;
    SetTable& table;
    BackendMaker& backends;
    OwnExchanges& exchanges;
    SubmissionQueue& queue;
    const Loop& loop;
    const EngineLife& life;
  };

  /// To be called once the group has started.
  ProcessSetMaker(const Dependencies& parts, std::weak_ptr<WaitHelper> engine,
                  std::shared_ptr<Logger> log);

  // add(), create() and remove() block until all ranks of the set have called them.
  ProcessSet add(const std::vector<int>& ranks);
  ProcessSet create(const std::vector<int>& ranks, const std::string& tag);
  void remove(ProcessSet set);

 private:
  ProcessSet make_set(const ExchangeKey& key, const std::vector<int>& ranks);
  void finish_set(const ExchangeKey& key, const std::string& error);
  void expect_callable(const char* function) const;
  std::shared_ptr<OwnExchange> meet(ExchangeKey key, std::string blob);
  std::shared_ptr<OwnExchange> ask(ExchangeKey key, std::string blob);
  std::vector<int> everybody() const { return dependencies_.table.at(kGlobalSet)->ranks; }

  const Dependencies dependencies_;
  const std::weak_ptr<WaitHelper> engine_;
  const std::shared_ptr<Logger> log_;
  std::atomic<std::uint64_t> added_{0};
};

}  // namespace ronde

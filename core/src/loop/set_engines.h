// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/src/agree/announcer.h"
#include "core/src/agree/combiner.h"
#include "core/src/agree/messages.h"
#include "core/src/agree/negotiator.h"
#include "core/src/agree/response_cache.h"
#include "core/src/group/control_tree.h"
#include "core/src/op/set_info.h"
#include "core/src/op/submission_queue.h"
#include "core/src/run/executor.h"
#include "core/src/run/result_verification.h"
#include "ronde/log.h"
#include "ronde/runtime.h"
#include "ronde/stats.h"

namespace ronde {

/// The backends that a thread has made for a set, and the description to which they refer
/// (BackendContext).
struct MadeSet {
  std::shared_ptr<const SetInfo> info;
  Backends backends;
};

/// One process set in the engine of one rank. Sets negotiate and execute independently, so that a
/// set that waits never holds up those that share ranks with it.
///
/// Thread-safety: none; owned by whoever runs the loop.
struct SetEngine {
  explicit SetEngine(SetInfo info_of_set) : info(std::move(info_of_set)) {}

  SetInfo info;
  std::vector<int> children;               ///< of the tree: members, or above members
  std::optional<ResponseCache> responses;  ///< shared by the announcer and the negotiator

  // Only on members of the set.
  std::shared_ptr<const SetInfo> made_for;  ///< the backends refer to it; null for the global set
  Backends backends;
  std::unique_ptr<Announcer> announcer;
  std::unique_ptr<Executor> executor;  ///< once the backends are made

  std::unique_ptr<Negotiator> negotiator;  ///< rank 0 of the group only, a member or not
  std::unique_ptr<Combiner> combiner;      ///< ranks with `children`, except rank 0
  /// Where there is a negotiator, with RONDE_VERIFY.
  std::unique_ptr<ResultComparison> results;

  bool is_global() const noexcept { return info.id == kGlobalSet.id; }
  bool busy() const noexcept { return executor && executor->busy(); }
};

/// The process sets in which the engine of this rank negotiates and executes: those of which it is
/// a member, those whose messages it forwards, and on rank 0 all. The global set is always there.
///
/// Thread-safety: none; owned by whoever runs the loop, but for add_stats(), which any thread may
/// call.
class SetEngines {
 public:
  using ById = std::map<std::uint32_t, std::unique_ptr<SetEngine>>;

  /// The references outlive this.
  SetEngines(const Config& config, const ControlTree& tree, const Logger& log,
             SubmissionQueue& queue);

  SetEngine& global() const noexcept { return global_; }
  const ById& all() const noexcept { return sets_; }
  /// Returns the sets with an executor, the global one first.
  const std::vector<SetEngine*>& running() const noexcept { return running_; }
  bool contains(std::uint32_t id) const { return sets_.contains(id); }
  /// Throws Error if this rank does not know the set.
  SetEngine& at(std::uint32_t id) const;

  /// Starts the global set, whose description and backends have been made.
  void start_global();
  /// Sets the limit of all executors, and of later ones.
  void set_fusion_bytes(std::uint64_t bytes);
  /// Adds the set that rank 0 has numbered: announcements of its members are handled from now on.
  void add(const ExchangeReply& reply);
  /// Installs a set that a thread has made: its operations can run from now on.
  void install(MadeSet made);
  /// Removes the set and returns what was installed for it. Nothing may be in flight there.
  MadeSet remove(std::uint32_t id);
  /// Ends all sets. Returns the backends of devices, which were built on those of the CPU but no
  /// longer use them.
  std::vector<std::unique_ptr<Backend>> stop();

  /// Adds the counters of all sets.
  void add_stats(Stats& stats) const;

 private:
  void make_negotiation(SetEngine& set) const;
  void make_executor(SetEngine& set);

  const Config& config_;
  const ControlTree& tree_;
  const Logger& log_;
  SubmissionQueue& queue_;
  /// Guards what add_stats() reads.
  mutable std::mutex mutex_;
  ById sets_;
  SetEngine& global_;
  std::vector<SetEngine*> running_;
  std::uint64_t fusion_bytes_ = 0;  ///< once there is an executor
};

}  // namespace ronde

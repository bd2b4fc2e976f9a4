// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/set_engines.h"

#include <algorithm>

#include "core/src/agree/stalls.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// How long a leader holds back operations that only some of its ranks have announced: longer than
/// the usual spread of ranks in a step, so that the rank above gets one message.
constexpr std::chrono::milliseconds kMostCombiningPatience{100};

}  // namespace

SetEngines::SetEngines(const Config& config, const ControlTree& tree, const Logger& log,
                       SubmissionQueue& queue)
    : config_(config),
      tree_(tree),
      log_(log),
      queue_(queue),
      global_(*sets_.emplace(kGlobalSet.id, std::make_unique<SetEngine>(SetInfo{})).first->second) {
}

SetEngine& SetEngines::at(std::uint32_t id) const {
  const auto found = sets_.find(id);
  if (found != sets_.end()) return *found->second;
  throw Error("a control message came for process set " + std::to_string(id) + ", which " +
              rank_name(tree_.rank()) + " does not know");
}

void SetEngines::start_global() {
  fusion_bytes_ = config_.fusion_bytes;
  make_negotiation(global_);
  make_executor(global_);
}

void SetEngines::set_fusion_bytes(std::uint64_t bytes) {
  fusion_bytes_ = bytes;
  for (SetEngine* const set : running_) set->executor->set_fusion_bytes(bytes);
}

void SetEngines::add(const ExchangeReply& reply) {
  auto set = std::make_unique<SetEngine>(make_set_info(
      reply.set, reply.members, reply.key.kind == ExchangeKind::AddSet, tree_.topology()));
  make_negotiation(*set);
  if (!set->announcer && !set->negotiator && set->children.empty()) return;
  const std::lock_guard lock(mutex_);
  sets_[reply.set] = std::move(set);
}

void SetEngines::install(MadeSet made) {
  const std::lock_guard lock(mutex_);
  SetEngine& set = *sets_.at(made.info->id);
  set.made_for = std::move(made.info);
  set.backends = std::move(made.backends);
  make_executor(set);
}

MadeSet SetEngines::remove(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(id);
  if (found == sets_.end()) return {};
  std::erase(running_, found->second.get());
  MadeSet forgotten{std::move(found->second->made_for), std::move(found->second->backends)};
  sets_.erase(found);
  return forgotten;
}

std::vector<std::unique_ptr<Backend>> SetEngines::stop() {
  const std::lock_guard lock(mutex_);
  running_.clear();
  std::vector<std::unique_ptr<Backend>> of_devices;
  for (auto& [id, set] : sets_) {
    for (auto& [device, backend] : set->backends) {
      if (device != DeviceKind::Cpu) of_devices.push_back(std::move(backend));
    }
    set->backends.clear();
  }
  return of_devices;
}

/// Makes the parts for negotiation, also on ranks between rank 0 and the members.
void SetEngines::make_negotiation(SetEngine& set) const {
  set.children = tree_.topology().children_towards(set.info.ranks);
  set.responses.emplace(std::max(set.info.topology.rank, 0));
  if (set.info.is_member())
    set.announcer = std::make_unique<Announcer>(*set.responses, &queue_.events());
  if (tree_.is_arbiter()) {
    set.negotiator = std::make_unique<Negotiator>(
        set.info.ranks, *set.responses, config_.cache_capacity,
        [&set](const OpSpec& spec) { return agreed_error(set.info, spec); },
        config_.join_average == "all" ? Negotiator::JoinAverage::All
                                      : Negotiator::JoinAverage::Contributing,
        set.info.id);
    if (config_.verify) set.results = std::make_unique<ResultComparison>(set.info.ranks);
  } else if (!set.children.empty()) {
    const Topology& topology = tree_.topology();
    std::vector<int> below;
    for (std::size_t within = 0; within < set.info.ranks.size(); ++within) {
      if (topology.is_at_or_below(set.info.ranks[within], tree_.rank())) {
        below.push_back(static_cast<int>(within));
      }
    }
    // Short against the limits on stalls, as rank 0 must know the missing ranks by then, and each
    // leader on the way to it may wait.
    const auto period = StallInspector(config_.stall_warn_s, config_.stall_abort_s).period();
    const int leaders = topology.depth_of(topology.leaders.back());
    Duration patience = kMostCombiningPatience;
    if (period) patience = std::min(patience, *period / (2 * leaders));
    set.combiner = std::make_unique<Combiner>(std::move(below), patience, set.info.ranks);
  }
}

void SetEngines::make_executor(SetEngine& set) {
  const Topology& topology = set.info.topology;
  set.executor = std::make_unique<Executor>(set.backends, topology.rank, topology.size,
                                            fusion_bytes_, tree_.rank(), log_, queue_);
  if (config_.verify) set.executor->verify_results();
  running_.push_back(&set);
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
// How a coordinator meets the others and chooses its backends.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "coordinator.h"
#include "rank_list.h"
#include "request_validation.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// A frozen schedule is given up after this part of the time after which a stall is warned of, as
/// only rank 0's negotiation knows who is missing.
constexpr double kThawsBeforeWarning = 2.0;

/// How long a leader holds back what some ranks of its host have not come to. Longer than ranks
/// usually lie apart in a step, so that rank 0 gets one message of a host.
constexpr std::chrono::milliseconds kMostCombiningPatience{100};

}  // namespace

bool Coordinator::try_start() noexcept {
  try {
    start();
  } catch (...) {
    {
      // Told before the transport closes, as that may wait for the others.
      const std::lock_guard lock(mutex_);
      start_error_ = std::current_exception();
      started_ = true;
      changed_.notify_all();
    }
    end_anyhow(bootstrap_ && bootstrap_->is_refused());
    return false;
  }
  const std::lock_guard lock(mutex_);
  started_ = true;
  changed_.notify_all();
  return true;
}

void Coordinator::start() {
  tree_.open(options_.make_transport());
  bootstrap_.emplace(tree_, std::min(start_deadline_, tree_.transport().start_deadline()));
  transport_name_ = tree_.transport().name();
  log_->set_rank(tree_.rank());
  outnumbers_cores_ = tree_.topology().local_size > tree_.topology().local_cores;
  std::vector<int> everybody(static_cast<std::size_t>(tree_.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  global_.info = make_set_info(kGlobalSet.id, std::move(everybody), true, tree_.topology());
  if (tree_.size() > 1 && log_->enabled(LogLevel::Debug)) {
    std::vector<int> neighbours = tree_.children();
    if (tree_.parent() >= 0) neighbours.push_back(tree_.parent());
    std::sort(neighbours.begin(), neighbours.end());
    log_->debug("connected by " + transport_name_ + " with " + format_ranks(neighbours) + " of " +
                std::to_string(tree_.size()) +
                "; hosts: " + std::to_string(tree_.topology().hosts()));
  }
  bootstrap_->compare_configurations(options_);
  make_board();
  backends_.make_for_all(global_, board_.get(), *bootstrap_);
  pin_thread();
  if (tree_.is_arbiter()) {
    desk_ = std::make_unique<ExchangeDesk>(tree_.size());
    finished_.resize(static_cast<std::size_t>(tree_.size()), false);
    if (!options_.effective_config.empty()) log_->info(options_.effective_config);
  }
  make_negotiation(global_);
  make_executor(global_);
  sets_here_.insert(std::make_shared<SetInfo>(global_.info));
  submitter_.emplace(tree_.topology(), sets_here_, *queue_, backends_.symmetric_heap(),
                     backends_.device_streams(), weak_from_this(), log_);
}

/// What the ranks between rank 0 and the members need, too.
void Coordinator::make_negotiation(SetEngine& set) {
  set.children = tree_.topology().children_towards(set.info.ranks);
  if (set.info.is_member()) set.announcer = std::make_unique<Announcer>(set.info.topology.rank);
  if (tree_.is_arbiter()) {
    set.negotiator = std::make_unique<Negotiator>(
        set.info.ranks, options_.config.cache_capacity,
        [&set](const RequestMeta& meta) { return agreed_error(set.info, meta); },
        options_.config.join_average == "all" ? Negotiator::JoinAverage::All
                                              : Negotiator::JoinAverage::Contributing,
        set.info.id);
  } else if (!set.children.empty()) {
    std::vector<int> here;
    for (const int rank : tree_.topology().host_ranks()) {
      const int within = rank_within(set.info.ranks, rank);
      if (within >= 0) here.push_back(within);
    }
    std::sort(here.begin(), here.end());
    set.combiner =
        std::make_unique<Combiner>(std::move(here), combining_patience(), set.info.ranks);
  }
}

void Coordinator::make_executor(SetEngine& set) {
  const Topology& topology = set.info.topology;
  set.executor = std::make_unique<Executor>(
      set.backends, topology.rank, topology.size, options_.config.fusion_bytes, tree_.rank(), *log_,
      [this](Submission& submission, std::exception_ptr error, bool contributed) {
        complete(*queue_, submission, std::move(error), contributed);
      },
      [this](Submission& submission, std::shared_ptr<const DeviceEvent> event) {
        note_queued(*queue_, submission, std::move(event));
      });
  running_.push_back(&set);
}

void Coordinator::pin_thread() {
  const auto core =
      affinity_core(options_.config, tree_.topology().local_rank, tree_.topology().local_size);
  if (!core) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(*core), &cores);
  const int code = pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  if (code == 0) return;
  log_->warning("RONDE_THREAD_AFFINITY: the coordinator cannot run on core " +
                std::to_string(*core) + " (" + std::strerror(code) + "); it stays unpinned");
}

void Coordinator::make_board() {
  if (tree_.size() == 1 || tree_.topology().hosts() > 1 || !options_.make_board) return;
  BoardContext context;
  context.topology = &tree_.topology();
  context.exchange = [this](std::string_view blob) { return bootstrap_->exchange(blob); };
  context.wake_fd = tree_.transport().wake_fd();
  context.warn = [this](const std::string& text) {
    if (tree_.is_arbiter()) log_->warning(text);
  };
  board_ = options_.make_board(context);
  if (!board_ || options_.config.freeze_after_steps == 0) return;
  if (tree_.size() > ArrivalWords::kMostRanks) {
    if (tree_.is_arbiter()) {
      log_->debug("no schedule is frozen: it serves at most " +
                  std::to_string(ArrivalWords::kMostRanks) + " ranks, and there are " +
                  std::to_string(tree_.size()));
    }
    return;
  }
  const double longest_wait_s = options_.config.stall_warn_s > 0
                                    ? options_.config.stall_warn_s / kThawsBeforeWarning
                                    : options_.config.stall_abort_s / kThawsBeforeWarning;
  schedule_ = std::make_unique<FrozenSchedule>(
      *board_, tree_.rank(), tree_.size(),
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(longest_wait_s)));
  queue_->use(schedule_.get());
  uses_schedule_.store(true, std::memory_order_release);
  if (tree_.is_arbiter()) {
    learner_ =
        std::make_unique<ScheduleLearner>(options_.config.freeze_after_steps,
                                          options_.config.fusion_bytes, schedule_->most_buckets());
  }
}

/// Short against the limits on stalls, as rank 0 is to know whom it waits for.
Coordinator::Clock::duration Coordinator::combining_patience() const {
  const auto period = stalls_.period();
  return period ? std::min<Clock::duration>(*period / 2, kMostCombiningPatience)
                : Clock::duration(kMostCombiningPatience);
}

}  // namespace ronde

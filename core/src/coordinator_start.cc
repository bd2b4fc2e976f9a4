// SPDX-License-Identifier: Apache-2.0
// How a coordinator meets the others and chooses its backends.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend_choice.h"
#include "coordinator.h"
#include "exception_text.h"
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

/// What a rank tells of a backend that it could not make: one of these, and the text.
constexpr char kUsage = 'u';
constexpr char kFailure = 'f';

/// Of the exception that is being handled.
std::string told_of_backend() {
  try {
    throw;
  } catch (const UsageError& error) {
    return kUsage + std::string(error.what());
  } catch (...) {
    return kFailure + exception_text();
  }
}

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
  make_host_backend();
  make_device_backend();
  pin_thread();
  if (tree_.is_arbiter()) {
    desk_ = std::make_unique<ExchangeDesk>(tree_.size());
    finished_.resize(static_cast<std::size_t>(tree_.size()), false);
    if (!options_.effective_config.empty()) log_->info(options_.effective_config);
  }
  for (const auto& [device, backend] : global_.backends) {
    global_.info.backends[device] = {std::string(backend->name()), backend->capabilities()};
  }
  make_negotiation(global_);
  make_executor(global_);
  sets_here_.insert(std::make_shared<SetInfo>(global_.info));
  submitter_.emplace(tree_.topology(), sets_here_, *queue_, heap_, device_streams_,
                     weak_from_this(), log_);
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
        complete(submission, std::move(error), contributed);
      },
      [this](Submission& submission, std::shared_ptr<const DeviceEvent> event) {
        note_queued(submission, std::move(event));
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

void Coordinator::make_host_backend() {
  BackendContext context = backend_context(global_.info);
  context.symmetric_heap_bytes = options_.config.symmetric_heap_bytes;
  make_on_all_ranks(
      choose_backend(options_.backends, DeviceKind::Cpu, options_.config.cpu_backend, tree_.topology()),
      DeviceKind::Cpu, context);
  heap_ = global_.backends[DeviceKind::Cpu]->symmetric_heap();
}

/// Every rank must reach the exchange after it, or the others would wait for it.
void Coordinator::make_on_all_ranks(const BackendRegistry::value_type& chosen, DeviceKind device,
                                    BackendContext& context) {
  context.exchange = [this](std::string_view blob) { return bootstrap_->exchange(blob); };
  context.deadline = bootstrap_->deadline();
  std::string error;
  try {
    make_backend(chosen, device, global_.backends, context);
  } catch (const GroupError&) {
    throw;  // of an exchange: every rank throws it, and none comes to the next one
  } catch (...) {
    error = told_of_backend();
  }
  agree_on_errors(error);
}

/// Why not all ranks can have it, or empty. All of them ask.
std::string Coordinator::device_backend_problem(const BackendRegistry::value_type& candidate) {
  const auto& [name, factory] = candidate;
  if (factory.suits && !factory.suits(tree_.topology()))
    return name + ": it does not suit these ranks";
  int hindered = -1;
  const std::string problem =
      bootstrap_->first_word(factory.problem ? factory.problem() : std::string(), hindered);
  return problem.empty() ? problem : name + ": " + rank_name(hindered) + ": " + problem;
}

/// The best one that all ranks can have; none where some of them cannot, unless it was asked for.
void Coordinator::make_device_backend() {
  const std::string& wanted = options_.config.gpu_backend;
  for (const auto& candidate : options_.device_backends) {
    const std::string problem = device_backend_problem(candidate);
    if (problem.empty()) {
      device_backends_.insert(candidate);
      continue;
    }
    if (candidate.first == wanted) {
      bootstrap_->refuse("RONDE_GPU_BACKEND=" + problem);
    }
    log_->debug("not available, backend of GPU buffers " + problem);
    global_.info.device_problem += (global_.info.device_problem.empty() ? "" : "; ") + problem;
  }
  if (device_backends_.empty()) return;
  BackendContext context = backend_context(global_.info);
  context.host = global_.backends.at(DeviceKind::Cpu).get();
  make_on_all_ranks(choose_backend(device_backends_, DeviceKind::Cuda, wanted, tree_.topology()),
                    DeviceKind::Cuda, context);
  device_streams_ = global_.backends[DeviceKind::Cuda]->device_streams();
}

void Coordinator::agree_on_errors(const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    making_.clear();  // also where it could not be made
  }
  int failed = -1;
  const std::string word = bootstrap_->first_word(error, failed);
  if (word.empty()) return;
  const std::string text = rank_name(failed) + " cannot start its backend: " + word.substr(1);
  if (word.front() == kFailure) throw GroupError(failed, text);
  bootstrap_->refuse(text);
}

void Coordinator::make_backend(const BackendRegistry::value_type& chosen, DeviceKind device,
                               Backends& made, BackendContext& context) {
  const auto& [name, factory] = chosen;
  const bool is_start = context.set == kGlobalSet.id;
  const auto note_making = [&](const std::string& what) {
    const std::lock_guard lock(mutex_);
    making_ = what;
  };
  if (is_start) note_making(name);
  if (log_->enabled(LogLevel::Debug)) {
    const bool is_cpu = device == DeviceKind::Cpu;
    const Config& config = options_.config;
    log_->debug("process set " + std::to_string(context.set) + ", backend of " +
                std::string(to_string(device)) + " buffers: " + name + "; chosen by " +
                (is_cpu ? "RONDE_CPU_BACKEND=" + config.cpu_backend
                        : "RONDE_GPU_BACKEND=" + config.gpu_backend) +
                " among " +
                candidates_text(is_cpu ? options_.backends : device_backends_, device,
                                *context.topology, context.set != kGlobalSet.id));
  }
  made[device] = create_backend(factory, context, options_.config.fusion_bytes);
  if (!is_start) return;
  note_making({});
  backend_names_[device] = name;
}

std::optional<GroupError> Coordinator::hanging_start() const {
  const std::lock_guard lock(mutex_);
  if (making_.empty()) return std::nullopt;
  return GroupError(tree_.rank(), rank_name(tree_.rank()) + " did not finish making backend '" +
                                      making_ +
                                      "' within RONDE_INIT_TIMEOUT_S: it hangs there. End this "
                                      "process");
}

/// `info` stays while the context is used.
BackendContext Coordinator::backend_context(const SetInfo& info) {
  BackendContext context;
  context.topology = &info.topology;
  context.set = info.id;
  context.ranks = info.ranks;
  context.ring_peers = [this] {
    if (board_) board_->ring(Board::Whom::Waiting);
  };
  context.warn = [this, speaks = info.topology.rank == 0](const std::string& text) {
    if (is_new_warning(text) && speaks) log_->warning(text);
  };
  return context;
}

/// Process sets find the same in the way as all ranks did, who remember it, whichever of them
/// spoke.
bool Coordinator::is_new_warning(const std::string& text) {
  const std::lock_guard lock(mutex_);
  return warnings_.insert(text).second;
}

/// Short against the limits on stalls, as rank 0 is to know whom it waits for.
Coordinator::Clock::duration Coordinator::combining_patience() const {
  const auto period = stalls_.period();
  return period ? std::min<Clock::duration>(*period / 2, kMostCombiningPatience)
                : Clock::duration(kMostCombiningPatience);
}

}  // namespace ronde

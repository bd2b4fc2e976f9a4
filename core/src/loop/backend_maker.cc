// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/backend_maker.h"

#include "core/src/base/rank_list.h"
#include "core/src/base/text.h"
#include "ronde/error.h"
#include "ronde/plugin/choice.h"

namespace ronde {
namespace {

/// Prefix of the text by which a rank reports that it could not make a backend.
constexpr char kUsage = 'u';
constexpr char kFailure = 'f';

}  // namespace

void BackendMaker::make_for_all(SetEngine& global, Board* board, Bootstrap& bootstrap) {
  board_ = board;
  BackendContext context = context_of(global.info, &bootstrap);
  context.symmetric_heap_bytes = options_.config.symmetric_heap_bytes;
  make_on_all(DeviceKind::Cpu, global.backends, context, bootstrap);
  Backend& host = *global.backends.at(DeviceKind::Cpu);
  heap_ = host.symmetric_heap();
  find_device_backends(bootstrap);
  global.info.device_problem = device_problem_;
  if (!device_backends_.empty()) {
    BackendContext of_devices = context_of(global.info, &bootstrap);
    of_devices.host = &host;
    make_on_all(DeviceKind::Cuda, global.backends, of_devices, bootstrap);
    device_streams_ = global.backends.at(DeviceKind::Cuda)->device_streams();
  }
  for (const auto& [device, backend] : global.backends) {
    global.info.backends[device] = {std::string(backend->name()), backend->capabilities()};
  }
}

/// Finds the backends available on all ranks; refuses the start if the requested one is not.
void BackendMaker::find_device_backends(Bootstrap& bootstrap) {
  for (const auto& [name, factory] : options_.device_backends) {
    std::string problem = "it does not suit these ranks";
    if (!factory.suits || factory.suits(tree_.topology())) {
      int where = -1;
      problem = bootstrap.first_text(factory.problem ? factory.problem() : std::string(), where);
      if (!problem.empty()) problem.insert(0, rank_name(where) + ": ");
    }
    if (problem.empty()) {
      device_backends_.emplace(name, factory);
      continue;
    }
    problem.insert(0, name + ": ");
    if (name == options_.config.gpu_backend) bootstrap.refuse("RONDE_GPU_BACKEND=" + problem);
    log_.debug("not available, backend of GPU buffers " + problem);
    device_problem_ += (device_problem_.empty() ? "" : "; ") + problem;
  }
}

/// Every rank reports the outcome, as the others wait for it.
void BackendMaker::make_on_all(DeviceKind device, Backends& made, BackendContext& context,
                               Bootstrap& bootstrap) {
  std::string error;
  try {
    make(device, made, context);
  } catch (const GroupError&) {
    throw;  // by an exchange: every rank throws it, so that none waits in the next one
  } catch (const UsageError& usage) {
    error = kUsage + std::string(usage.what());
  } catch (...) {
    error = kFailure + exception_text();
  }
  set_making({});  // also where it could not be made
  int failed = -1;
  const std::string report = bootstrap.first_text(error, failed);
  if (report.empty()) return;
  const std::string text = rank_name(failed) + " cannot start its backend: " + report.substr(1);
  if (report.front() == kFailure) throw GroupError(failed, text);
  bootstrap.refuse(text);
}

Backends BackendMaker::make_for_set(const SetInfo& info, const Exchange& exchange,
                                    const std::function<bool()>& has_failed) {
  BackendContext context = context_of(info);
  context.exchange = exchange;
  context.has_failed = has_failed;
  Backends made;
  make(DeviceKind::Cpu, made, context);
  if (device_backends_.empty() || !info.device_problem.empty()) return made;
  context.host = made.at(DeviceKind::Cpu).get();
  make(DeviceKind::Cuda, made, context);
  return made;
}

std::string BackendMaker::device_problem_of(const SetInfo& set) const {
  if (device_backends_.empty()) return device_problem_;
  try {
    static_cast<void>(choose_set_backend(device_backends_, DeviceKind::Cuda,
                                         options_.config.gpu_backend, set.topology));
    return {};
  } catch (const UsageError& error) {
    return error.what();
  }
}

void BackendMaker::make(DeviceKind device, Backends& made, BackendContext& context) {
  const Config& config = options_.config;
  const bool is_start = context.set == kGlobalSet.id;
  const bool is_cpu = device == DeviceKind::Cpu;
  const BackendRegistry& candidates = is_cpu ? options_.backends : device_backends_;
  const std::string& wanted = is_cpu ? config.cpu_backend : config.gpu_backend;
  const auto& choose = is_start ? choose_backend : choose_set_backend;
  const auto& [name, factory] = choose(candidates, device, wanted, *context.topology);
  if (is_start) set_making(name);
  if (log_.enabled(LogLevel::Debug)) {
    log_.debug("process set " + std::to_string(context.set) + ", backend of " +
               std::string(to_string(device)) + " buffers: " + name + "; chosen by " +
               (is_cpu ? "RONDE_CPU_BACKEND=" : "RONDE_GPU_BACKEND=") + wanted + " among " +
               candidates_text(candidates, device, *context.topology, !is_start));
  }
  made[device] = create_backend(factory, context, config.fusion_bytes);
  if (is_start) names_[device] = name;
}

void BackendMaker::set_making(const std::string& name) {
  const std::lock_guard lock(mutex_);
  making_ = name;
}

std::optional<GroupError> BackendMaker::hanging_start() const {
  const std::lock_guard lock(mutex_);
  if (making_.empty()) return std::nullopt;
  return GroupError(tree_.rank(), rank_name(tree_.rank()) + " did not finish making backend '" +
                                      making_ +
                                      "' within RONDE_INIT_TIMEOUT_S: it hangs there. End this "
                                      "process");
}

std::string BackendMaker::name_of(DeviceKind device) const {
  const auto found = names_.find(device);
  return found == names_.end() ? std::string() : found->second;
}

BackendContext BackendMaker::context_of(const SetInfo& info, Bootstrap* bootstrap) {
  BackendContext context;
  context.topology = &info.topology;
  context.set = info.id;
  context.ranks = info.ranks;
  context.notify_peers = [] {};
  if (board_ != nullptr) {
    context.notify_peers = std::bind_front(&Board::notify, board_, Board::Whom::Waiting);
  }
  context.warn = [this, speaks = info.topology.rank == 0](const std::string& text) {
    // Process sets run into the same problems as all ranks did: every rank remembers a warning.
    const bool is_new = [&] {
      const std::lock_guard lock(mutex_);
      return warnings_.insert(text).second;
    }();
    if (is_new && speaks) log_.warning(text);  // may block, and others need the lock
  };
  if (bootstrap == nullptr) return context;
  context.exchange = [bootstrap](std::string_view blob) { return bootstrap->exchange(blob); };
  context.deadline = bootstrap->deadline();
  return context;
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/device.h"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/cuda.h>

#include <algorithm>
#include <string>
#include <typeinfo>

#include "ronde/config.h"
#include "ronde/error.h"
#include "ronde/log.h"
#include "ronde/ronde.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/counters.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

void apply_thread_rule(Runtime& runtime) {
  const Topology& topology = runtime.topology();
  const std::uint64_t configured = runtime.config().compute_threads;
  const bool omp_set = process_environment()("OMP_NUM_THREADS").has_value();
  const bool stays = omp_set || is_guest();
  const int cores = topology.local_cores;
  const int threads = detail::compute_threads(configured, stays, cores, topology.local_size);
  if (threads > 0) at::set_num_threads(threads);
  if (topology.rank != 0) return;
  const Logger log(parse_log_level(runtime.config().log_level), topology.rank);
  const std::string share =
      std::to_string(cores) + " cores for " + std::to_string(topology.local_size) + " local ranks";
  if (threads == 0 && !omp_set && at::get_num_threads() * topology.local_size > cores) {
    log.warning("there are " + share + ", each of which computes with " +
                std::to_string(at::get_num_threads()) +
                " threads of LibTorch. As the program had initialised MPI, Ronde leaves them as "
                "they are: set RONDE_COMPUTE_THREADS or OMP_NUM_THREADS");
  }
  std::string reason = share + "; RONDE_COMPUTE_THREADS overrides";
  if (configured != 0) {
    reason = "RONDE_COMPUTE_THREADS";
  } else if (stays) {
    reason = omp_set ? "left alone, as OMP_NUM_THREADS is set" : "left alone, as a guest";
  }
  log.debug("threads of LibTorch on this rank: " + std::to_string(at::get_num_threads()) + " (" +
            reason + ")");
}

// Note [LibTorch's CUDA hooks]
// The first call of ATen that needs CUDA caches the registered hooks for the rest of the process:
// those of libtorch_cuda or, if it is not loaded yet, the interface itself, which has no GPU. A
// library that is loaded later registers its hooks without effect.

/// Does not cache the hooks, so that libtorch_cuda can still be loaded.
bool libtorch_cuda_is_loaded() {
  return at::CUDAHooksRegistry()->Has("CUDAHooks");
}

/// Note [LibTorch's CUDA hooks].
void require_hooks_of_cuda() {
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  if (typeid(hooks) != typeid(at::CUDAHooksInterface)) return;
  throw UsageError(
      "local_device(): this program loaded libtorch_cuda after LibTorch had been asked for CUDA, "
      "by torch::manual_seed() for example, and then LibTorch finds no GPU for as long as the "
      "process lives; link libtorch_cuda, or open it with dlopen() before any other call of "
      "LibTorch");
}

void warn_that_cuda_is_not_loaded(const Runtime& runtime, ProcessSet set) {
  if (runtime.topology().rank != 0) return;
  detail::rank_log(set).warning(
      "local_device() is the CPU, though Ronde has a backend for GPUs: libtorch_cuda is not "
      "loaded. Link it (-Wl,--no-as-needed -ltorch_cuda), or open it with dlopen() before any "
      "other call of LibTorch");
}

}  // namespace

c10::Device local_device(ProcessSet set) {
  const Runtime& runtime = runtime_of(set);
  if (runtime.backend_name(DeviceKind::Cuda).empty()) return c10::Device(c10::kCPU);
  if (!libtorch_cuda_is_loaded()) {
    warn_that_cuda_is_not_loaded(runtime, set);
    return c10::Device(c10::kCPU);
  }
  require_hooks_of_cuda();
  if (!torch::cuda::is_available()) return c10::Device(c10::kCPU);
  const int visible = static_cast<int>(torch::cuda::device_count());
  const int index = runtime.topology().local_rank % visible;
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

namespace detail {

int compute_threads(unsigned long long configured, bool stays, int cores, int local_size) noexcept {
  constexpr unsigned long long kMost = 1U << 20;
  if (configured != 0) return static_cast<int>(std::min(configured, kMost));
  if (stays) return 0;
  return std::max(1, cores / std::max(1, local_size));
}

bool computing_takes_all_cores(ProcessSet set) {
  const Topology& topology = runtime_of(set).topology();
  return at::get_num_threads() * topology.local_size >= topology.local_cores;
}

bool install_thread_rule() {
  static const bool installed = [] {
    add_init_hook(apply_thread_rule);
    add_init_hook(count_start);
    add_init_hook(CurrentCounters<GradientCounters>::restart);
    add_init_hook(CurrentCounters<SyncBatchNormCounters>::restart);
    return true;
  }();
  return installed;
}

}  // namespace detail
}  // namespace ronde

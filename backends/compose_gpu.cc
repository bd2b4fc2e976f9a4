// SPDX-License-Identifier: Apache-2.0
#include "backends/compose.h"

#include <memory>
#include <utility>

#include "backends/cuda/cuda.h"
#include "backends/gpu/driver/driver_api.h"
#include "backends/gpu/driver/gpu_reader.h"
#include "backends/gpu/kernels/kernel_image.h"
#include "backends/launcher.h"
#include "backends/nccl/nccl.h"
#include "backends/nccl/nccl_api.h"
#include "ronde/log.h"

#ifdef RONDE_HAVE_MPI
#include "backends/mpi/gpu_aware_mpi.h"
#endif

namespace ronde {
namespace {

CudaOptions cuda_options(const Config& config) {
  return {.fusion_bytes = config.fusion_bytes,
          .ipc = config.cuda_ipc,
          .ipc_direct_bytes = config.cuda_ipc_direct_bytes,
          .registration_cache = config.registration_cache,
          .registration_cache_bytes = config.registration_cache_bytes,
          .visible_devices = visible_devices(config)};
}

NcclOptions nccl_options(const Config& config) {
  NcclOptions options;
  options.fusion_bytes = config.fusion_bytes;
  options.registration_cache = config.registration_cache;
  options.init_timeout_s = config.init_timeout_s;
  options.kernel_image = cuda::kernel_image();
  options.exact = config.exact;
  const auto shares = detail::number_in(process_environment(), "NCCL_MULTI_RANK_GPU_ENABLE");
  options.ranks_may_share_gpus = shares.value_or(0) != 0;
  return options;
}

}  // namespace

void add_gpu_backends(const Config& config, [[maybe_unused]] const MpiOptions* mpi,
                      BuiltIn& built_in) {
  CudaOptions cuda = cuda_options(config);
  NcclOptions nccl = nccl_options(config);
  const auto reader = std::make_shared<cuda::GpuReader>(parse_log_level(config.log_level));
  cuda.on_gpu = nccl.on_gpu = [reader](const std::string& uuid) { reader->use(uuid); };
  built_in.read_gpu = cuda::read_with_patience(reader);
  if (config.gpu_aware_mpi) {
    cuda.gpu_aware_mpi.problem = [] {
      return "RONDE_GPU_AWARE_MPI=1 needs ranks that MPI has started";
    };
  }
#ifdef RONDE_HAVE_MPI
  if (config.gpu_aware_mpi && mpi != nullptr) cuda.gpu_aware_mpi = gpu_aware_mpi_factory(*mpi);
#endif
  // NCCL that was asked for by name has no fallback.
  if (config.gpu_backend == "auto") nccl.fallback = cuda_backend_factory(cuda).create;
  built_in.device_backends.emplace("cuda", cuda_backend_factory(cuda));
  built_in.device_backends.emplace("nccl", nccl_backend_factory(nccl));
}

BackendRegistry gpu_setups(const Config& config, const vendor::SymbolLookup& symbols,
                           const void* kernel_image) {
  const auto with = [&](bool ipc, bool cache) {
    CudaOptions options = cuda_options(config);
    options.ipc = ipc;
    options.registration_cache = cache;
    options.symbols = symbols;
    options.kernel_image = kernel_image;
    return cuda_backend_factory(options);
  };
  NcclOptions nccl = nccl_options(config);
  nccl.registration_cache = true;
  nccl.driver_symbols = symbols;
  nccl.nccl_symbols = symbols;
  if (kernel_image != nullptr) nccl.kernel_image = kernel_image;
  return {{"mpi", with(false, false)},
          {"mpi-reg", with(false, true)},
          {"mpi-opt", with(true, true)},
          {"mpi-opt-nocache", with(true, false)},
          {"nccl", nccl_backend_factory(nccl)}};
}

int gpu_feature_version(std::string_view feature, const vendor::SymbolLookup& gpu_libraries) {
  if (cuda::kernel_image() == nullptr) return 0;
  const cuda::LoadedDriver driver = cuda::find_driver(gpu_libraries);
  if (!driver.api) return 0;
  if (feature == "cuda") return driver.version;
  const nccl::LoadedNccl library = nccl::load_nccl(gpu_libraries);
  return library.api ? library.version : 0;
}

}  // namespace ronde

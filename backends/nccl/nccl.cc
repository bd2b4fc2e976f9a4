// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/nccl.h"

#include <mutex>
#include <string>

#include "backends/cuda/gpu_backends.h"
#include "backends/nccl/nccl_backend.h"

namespace ronde {
namespace {

/// What this process has of the vendors' libraries; looked for once, by whoever asks first.
class Found {
 public:
  explicit Found(const NcclOptions& options) : options_(options) {}

  const std::string& problem() {
    look();
    return problem_;
  }
  const nccl::Libraries& libraries() {
    look();
    return libraries_;
  }

 private:
  void look() {
    const std::lock_guard lock(mutex_);
    if (was_looked_for_) return;
    was_looked_for_ = true;
    try {
      problem_ = load();
    } catch (const std::exception& error) {
      problem_ = error.what();
    }
  }

  std::string load() {
    const cuda::LoadedDriver driver = cuda::load_driver(options_.driver_symbols);
    const std::string no_gpu = cuda::why_no_gpu(driver, options_.kernel_image);
    if (!no_gpu.empty()) return no_gpu;
    const nccl::LoadedNccl nccl = nccl::load_nccl(options_.nccl_symbols);
    if (!nccl.api) return nccl.problem;
    libraries_ = {driver.api, nccl.api, nccl.version};
    return {};
  }

  const NcclOptions options_;
  std::mutex mutex_;
  bool was_looked_for_ = false;
  std::string problem_;
  nccl::Libraries libraries_;
};

}  // namespace

BackendFactory nccl_backend_factory(const NcclOptions& options) {
  const auto found = std::make_shared<Found>(options);
  BackendFactory factory;
  factory.device = DeviceKind::Cuda;
  factory.priority = 20;
  factory.serves_sets = true;
  factory.problem = [found] { return found->problem(); };
  factory.create = [found, options](BackendContext& context) -> std::unique_ptr<Backend> {
    if (!found->problem().empty()) throw Error(found->problem());
    return std::make_unique<nccl::NcclBackend>(found->libraries(), options, context);
  };
  return factory;
}

}  // namespace ronde

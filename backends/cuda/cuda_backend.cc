// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc/ipc_operations.h"
#include "backends/cuda/mpi/gpu_aware_operations.h"
#include "backends/cuda/staging/staged_operations.h"
#include "backends/gpu/base/abandon.h"
#include "backends/gpu/gpu_backends.h"
#include "backends/gpu/kernels/kernel_image.h"
#include "ronde/error.h"

namespace ronde {
namespace cuda {
namespace {

/// How long a destructor waits for queued work.
constexpr std::chrono::seconds kLastBound{2};

/// What may serve an operation; the host serves all.
enum class By { IpcOrMpi, Ipc, Host };

/// Makes the messages of a GPU-aware MPI; null where there is none, or no peer. Throws UsageError
/// on all ranks if one of them has a problem with it.
std::unique_ptr<Backend> make_messages(const BackendFactory& factory, BackendContext& context) {
  const bool is_wanted = factory.create || factory.problem;
  const bool serves = context.set == 0 || factory.serves_sets;
  if (!is_wanted || !serves || context.topology->size == 1) return nullptr;
  for (const std::string& problem :
       context.exchange(factory.problem ? factory.problem() : std::string())) {
    if (!problem.empty()) throw UsageError(problem);
  }
  return factory.create(context);
}

/// Buffers on GPUs, without NCCL. The first operation determines the rank's GPU; resources are made
/// and CUDA IPC is tried only then.
///
/// Thread-safety: as Backend. One operation at a time.
class CudaBackend final : public Backend {
 public:
  /// `context` outlives the backend. `messages`: sends and receives memory of GPUs, or null.
  CudaBackend(std::shared_ptr<const DriverApi> api, const void* image, CudaOptions options,
              const BackendContext& context, std::unique_ptr<Backend> messages)
      : options_(std::move(options)),
        image_(image),
        topology_(*context.topology),
        ranks_(context.ranks),
        warn_(context.warn),
        host_(*context.host),
        streams_(std::make_shared<CudaStreams>(std::move(api), options_.on_gpu)),
        cache_(std::make_unique<RegistrationCache>()),
        exchange_(host_, topology_.size),
        messages_(std::move(messages)) {}
  ~CudaBackend() override;

  std::string_view name() const noexcept override { return "cuda"; }
  Capabilities capabilities() const override { return gpu_capabilities(); }
  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return start(call, By::IpcOrMpi, &Collectives::allreduce, &StagedOperations::allreduce);
  }
  /// Broadcasts, which happen once, before training, are not left to MPI.
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    const auto by_ipc =
        static_cast<Steps (Collectives::*)(BroadcastCall)>(&IpcOperations::broadcast);
    return start(call, By::Ipc, by_ipc, &StagedOperations::broadcast);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return start(call, By::IpcOrMpi, &Collectives::allgather, &StagedOperations::allgather);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return start(call, By::IpcOrMpi, &Collectives::alltoall, &StagedOperations::alltoall);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return start(call, By::IpcOrMpi, &Collectives::reducescatter, &StagedOperations::reducescatter);
  }
  /// Messages are staged, as the trial of CUDA IPC is a collective of all ranks.
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return start(call, By::Host, {}, &StagedOperations::send);
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return start(call, By::Host, {}, &StagedOperations::recv);
  }
  std::shared_ptr<DeviceStreams> device_streams() const override { return streams_; }
  void abort() noexcept override;
  void release_peer_memory() override;
  void close() override;
  StatsGroup stats() const override;

 private:
  /// The resources on the rank's GPU.
  struct Gpu {
    Gpu(CudaBackend& owner, int device);

    GpuResources resources;
    IpcPeers peers;
    IpcOperations ipc;
    std::optional<GpuAwareOperations> direct;
    StagedOperations staged;
  };
  /// Runs one operation; the first one that CUDA IPC may serve tries it before.
  class Run final : public SteppedOperation {
   public:
    using Choose = std::function<Steps(Gpu& gpu, Collectives* between_gpus)>;

    /// `choose` returns the operation's steps; null `between_gpus`: it is staged.
    Run(CudaBackend& owner, const Placement& place, By by, Choose choose)
        : owner_(owner), choose_(std::move(choose)) {
      begin(run(place, by));
    }
    /// Cancels an exchange that is in progress where the group has failed.
    ~Run() override { owner_.exchange_.cancel(); }

   private:
    Steps run(Placement place, By by) {
      Gpu& gpu = owner_.gpu(place.device.index);
      if (by != By::Host && !owner_.has_ipc_) co_await owner_.try_ipc(gpu);
      Collectives* const between_gpus = owner_.choose(by);
      gpu.resources.run_after(place.after);
      co_await choose_(gpu, between_gpus);
      set_event(CudaStreams::mark(gpu.resources.stream()));
    }

    CudaBackend& owner_;
    const Choose choose_;
  };

  /// Starts the operation between GPUs, or the staged one where there is none.
  template <typename Call>
  std::unique_ptr<Operation> start(const Call& call, By by,
                                   Steps (Collectives::*between_gpus)(Call),
                                   Steps (StagedOperations::*staged)(Call)) {
    return std::make_unique<Run>(*this, call.place, by, [=](Gpu& gpu, Collectives* collectives) {
      return collectives != nullptr ? (collectives->*between_gpus)(call)
                                    : (gpu.staged.*staged)(call);
    });
  }

  /// `device`: an ordinal; negative: any that this rank may use.
  Gpu& gpu(int device);
  Steps try_ipc(Gpu& gpu);
  Collectives* choose(By by) noexcept;

  const CudaOptions options_;
  const void* const image_;
  const Topology topology_;
  const std::vector<int> ranks_;
  const std::function<void(const std::string&)> warn_;
  Backend& host_;
  const std::shared_ptr<CudaStreams> streams_;
  std::unique_ptr<RegistrationCache> cache_;
  CudaCounters counters_;
  gpu::HostExchange exchange_;
  const std::unique_ptr<Backend> messages_;  ///< null without GPU-aware MPI
  std::unique_ptr<Gpu> gpu_;
  bool is_dead_ = false;         ///< the group has failed
  std::optional<bool> has_ipc_;  ///< once it was tried
};

CudaBackend::Gpu::Gpu(CudaBackend& owner, int device)
    : resources(*owner.streams_, device, owner.image_,
                IpcOperations::buffer_bytes(owner.options_, owner.ranks_.size())),
      peers(resources, owner.ranks_, static_cast<std::size_t>(owner.topology_.rank)),
      ipc(resources, peers, *owner.cache_, owner.exchange_, owner.counters_, owner.options_,
          owner.warn_),
      staged(resources, owner.streams_->make_stream(device), owner.options_, owner.host_,
             owner.counters_, owner.topology_.rank) {
  if (owner.messages_) {
    direct.emplace(resources, *owner.messages_, owner.counters_, peers.size(), peers.own());
  }
}

CudaBackend::~CudaBackend() {
  if (!gpu_) return;
  streams_->cancel_waits();
  const bool is_over = streams_->drain(kLastBound) == DrainStatus::Reached;
  streams_->cancel_waits_by({});
  const bool mpi_may_write = gpu_->direct && gpu_->direct->has_pending();
  if (is_over && !mpi_may_write) return;
  gpu::abandon(std::move(gpu_));
  gpu::abandon(std::move(cache_));
}

CudaBackend::Gpu& CudaBackend::gpu(int device) {
  if (gpu_) return *gpu_;
  // A rank that has joined has no tensor.
  if (device < 0) device = streams_->own_device(topology_.local_rank);
  gpu_ = std::make_unique<Gpu>(*this, device);
  return *gpu_;
}

/// Tries CUDA IPC where all ranks are on one host; they all take part.
Steps CudaBackend::try_ipc(Gpu& gpu) {
  const bool may_work = options_.ipc && topology_.hosts() == 1 &&
                        static_cast<std::size_t>(topology_.size) <= kernels::kMostInputs;
  std::string problem;
  if (may_work) {
    co_await gpu.peers.connect(exchange_, options_.visible_devices, options_.ipc_patience, problem);
  }
  has_ipc_ = may_work && problem.empty();
  if (problem.empty()) co_return;
  warn_("CUDA IPC cannot be used, and what is on GPUs is " +
        std::string(messages_ ? "left to MPI or staged" : "staged through host memory") + ": " +
        problem + " (RONDE_CUDA_IPC=0 spares the trial)");
}

/// Returns what moves an operation from GPU to GPU, and counts it; null: it is staged.
Collectives* CudaBackend::choose(By by) noexcept {
  if (by != By::Host && *has_ipc_) {
    ++counters_.ipc_operations;
    return &gpu_->ipc;
  }
  const bool by_mpi = gpu_->direct && by == By::IpcOrMpi;
  ++(by_mpi ? counters_.mpi_operations : counters_.staged_operations);
  return by_mpi ? &*gpu_->direct : nullptr;
}

/// Queued work continues; CudaStreams::cancel_waits() ends its waits for peers.
void CudaBackend::abort() noexcept {
  if (messages_ && !is_dead_) messages_->abort();
  is_dead_ = true;
  if (!gpu_) return;
  streams_->cancel_waits_by([this] { gpu_->peers.release(); });
}

void CudaBackend::release_peer_memory() {
  if (!gpu_) return;
  cache_->clear();
  gpu_->peers.let();
}

/// A process set that is removed comes here without release_peer_memory().
void CudaBackend::close() {
  release_peer_memory();
  if (messages_ && !is_dead_) messages_->close();
}

StatsGroup CudaBackend::stats() const {
  StatsGroup group{"cuda",
                   {{"ipc_operations", counters_.ipc_operations},
                    {"staged_operations", counters_.staged_operations},
                    {"mpi_operations", counters_.mpi_operations},
                    {"mpi_sent_bytes", counters_.mpi_sent_bytes},
                    {"one_shots", counters_.one_shots},
                    {"two_shots", counters_.two_shots},
                    {"direct", counters_.direct},
                    {"flag_syncs", counters_.flag_syncs},
                    {"fusion_mappings", counters_.fusion_mappings},
                    {"packed_bytes", counters_.packed_bytes},
                    {"staged_bytes", counters_.staged_bytes},
                    {"handles_lost", streams_->lost()}}};
  cache_->add_to(group);
  return group;
}

}  // namespace
}  // namespace cuda

BackendFactory cuda_backend_factory(const CudaOptions& options) {
  const void* const image =
      options.kernel_image != nullptr ? options.kernel_image : cuda::kernel_image();
  BackendFactory factory;
  factory.device = DeviceKind::Cuda;
  factory.priority = 10;  // below NCCL's
  factory.serves_sets = true;
  factory.problem = [options, image] {
    return cuda::why_no_gpu(cuda::load_driver(options.symbols), image);
  };
  factory.create = [options, image](BackendContext& context) -> std::unique_ptr<Backend> {
    const cuda::LoadedDriver driver = cuda::load_driver(options.symbols);
    if (!driver.api) throw UsageError(driver.problem);
    return std::make_unique<cuda::CudaBackend>(driver.api, image, options, context,
                                               cuda::make_messages(options.gpu_aware_mpi, context));
  };
  return factory;
}

}  // namespace ronde

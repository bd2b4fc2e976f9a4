// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_backend.h"

#include <chrono>
#include <utility>

#include "backends/gpu/base/abandon.h"
#include "backends/gpu/kernels/kernel_image.h"
#include "ronde/error.h"

namespace ronde {
namespace cuda {
namespace {

/// How long a destructor waits for queued work.
constexpr std::chrono::seconds kLastBound{2};
constexpr int kPriority = 10;  ///< below NCCL's

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

}  // namespace

/// Runs one operation; the first one that CUDA IPC may serve tries it before.
class CudaBackend::Run final : public SteppedOperation {
 public:
  /// `choose` returns the operation's steps; null `between_gpus`: it is staged.
  Run(CudaBackend& owner, Placement place, Ways ways,
      std::function<Steps(Gpu& gpu, Collectives* between_gpus)> choose)
      : owner_(owner), place_(place), ways_(ways), choose_(std::move(choose)) {
    begin(run());
  }
  /// Cancels an exchange that is in progress where the group has failed.
  ~Run() override { owner_.exchange_.cancel(); }

 private:
  Steps run() {
    Gpu& gpu = owner_.gpu(place_.device.index);
    if (ways_.ipc && !owner_.has_ipc_) {
      Steps trying = owner_.try_ipc(gpu);
      co_await trying;
    }
    Collectives* const between_gpus = owner_.choose(ways_);
    gpu.resources.run_after(place_.after);
    Steps steps = choose_(gpu, between_gpus);
    co_await steps;
    set_event(owner_.streams_->mark(gpu.resources.stream()));
  }

  CudaBackend& owner_;
  const Placement place_;
  const Ways ways_;
  const std::function<Steps(Gpu&, Collectives*)> choose_;
};

CudaBackend::Gpu::Gpu(CudaBackend& owner, int device)
    : resources(*owner.streams_, device, owner.image_,
                IpcOperations::buffer_bytes(owner.options_, owner.ranks_.size()), kBytesBehind,
                owner.options_.registration_cache),
      peers(resources, owner.ranks_, static_cast<std::size_t>(owner.topology_.rank)),
      ipc(resources, peers, *owner.cache_, owner.exchange_, owner.counters_, owner.options_,
          owner.warn_),
      staged(resources, owner.streams_->make_stream(device),
             static_cast<std::size_t>(owner.options_.staged_piece_bytes), owner.host_,
             owner.counters_, owner.topology_.rank) {
  if (owner.messages_) {
    direct.emplace(resources, *owner.messages_, owner.counters_, peers.size(), peers.own());
  }
}

CudaBackend::CudaBackend(std::shared_ptr<const DriverApi> api, const void* image,
                         CudaOptions options, const BackendContext& context,
                         std::unique_ptr<Backend> messages)
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

CudaBackend::~CudaBackend() {
  if (!gpu_) return;
  streams_->cancel_waits();
  const bool is_over = streams_->drain(kLastBound) == DrainStatus::Reached;
  streams_->cancel_waits_by({});
  // A trial that was not released never ends.
  const auto bound = is_dead_ ? kLastBound : std::chrono::seconds{0};
  const bool mpi_may_write = gpu_->direct && gpu_->direct->has_pending();
  if (is_over && !mpi_may_write && gpu_->peers.trial_ends(bound)) return;
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
    Steps connecting =
        gpu.peers.connect(exchange_, options_.visible_devices, options_.ipc_patience, problem);
    co_await connecting;
  }
  has_ipc_ = may_work && problem.empty();
  if (problem.empty()) co_return;
  warn_("CUDA IPC cannot be used, and what is on GPUs is " +
        std::string(messages_ ? "left to MPI or staged" : "staged through host memory") + ": " +
        problem + " (RONDE_CUDA_IPC=0 spares the trial)");
}

/// Returns what moves an operation from GPU to GPU, and counts it; null: it is staged.
Collectives* CudaBackend::choose(Ways ways) noexcept {
  if (ways.ipc && *has_ipc_) {
    ++counters_.ipc_operations;
    return &gpu_->ipc;
  }
  const bool by_mpi = gpu_->direct && ways.mpi;
  ++(by_mpi ? counters_.mpi_operations : counters_.staged_operations);
  return by_mpi ? &*gpu_->direct : nullptr;
}

std::unique_ptr<Operation> CudaBackend::allreduce(const AllreduceCall& call) {
  return std::make_unique<Run>(*this, call.place, Ways{}, [call](Gpu& gpu, Collectives* by) {
    return by != nullptr ? by->allreduce(call) : gpu.staged.allreduce(call);
  });
}

std::unique_ptr<Operation> CudaBackend::broadcast(const BroadcastCall& call) {
  return std::make_unique<Run>(
      *this, call.place, Ways{.mpi = false}, [call](Gpu& gpu, Collectives* by) {
        return by != nullptr ? gpu.ipc.broadcast(call) : gpu.staged.broadcast(call);
      });
}

std::unique_ptr<Operation> CudaBackend::allgather(const AllgatherCall& call) {
  return std::make_unique<Run>(*this, call.place, Ways{}, [call](Gpu& gpu, Collectives* by) {
    return by != nullptr ? by->allgather(call) : gpu.staged.allgather(call);
  });
}

std::unique_ptr<Operation> CudaBackend::alltoall(const AlltoallCall& call) {
  return std::make_unique<Run>(*this, call.place, Ways{}, [call](Gpu& gpu, Collectives* by) {
    return by != nullptr ? by->alltoall(call) : gpu.staged.alltoall(call);
  });
}

std::unique_ptr<Operation> CudaBackend::reducescatter(const ReducescatterCall& call) {
  return std::make_unique<Run>(*this, call.place, Ways{}, [call](Gpu& gpu, Collectives* by) {
    return by != nullptr ? by->reducescatter(call) : gpu.staged.reducescatter(call);
  });
}

std::unique_ptr<Operation> CudaBackend::send(const SendCall& call) {
  return std::make_unique<Run>(*this, call.place, Ways{false, false},
                               [call](Gpu& gpu, Collectives*) { return gpu.staged.send(call); });
}

std::unique_ptr<Operation> CudaBackend::recv(const RecvCall& call) {
  return std::make_unique<Run>(*this, call.place, Ways{false, false},
                               [call](Gpu& gpu, Collectives*) { return gpu.staged.recv(call); });
}

/// Queued work continues; CudaStreams::cancel_waits() ends its waits for peers.
void CudaBackend::abort() noexcept {
  if (messages_ && !is_dead_) messages_->abort();
  is_dead_ = true;
  if (!gpu_) return;
  streams_->cancel_waits_by([this] { gpu_->peers.release(); });
  gpu_->peers.release_trial();
}

void CudaBackend::release_peer_memory() {
  if (!gpu_) return;
  gpu_->ipc.forget();
  gpu_->peers.forget();
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
  for (auto& [name, value] : cache_->stats().counters) {
    group.counters.emplace_back("registration_" + name, value);
  }
  return group;
}

}  // namespace cuda

BackendFactory cuda_backend_factory(const CudaOptions& options) {
  const void* const image =
      options.kernel_image != nullptr ? options.kernel_image : cuda::kernel_image();
  BackendFactory factory;
  factory.device = DeviceKind::Cuda;
  factory.priority = cuda::kPriority;
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

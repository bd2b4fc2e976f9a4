// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_backend.h"

#include <chrono>
#include <utility>

#include "backends/gpu/base/abandon.h"
#include "backends/gpu/kernels/kernel_image.h"
#include "ronde/error.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde {
namespace cuda {
namespace {

/// How long a destructor waits for queued work.
constexpr std::chrono::seconds kLastBound{2};
constexpr int kPriority = 10;  ///< below NCCL's

std::vector<std::size_t> ranks_here(const Topology& topology) {
  const std::vector<int> ranks = topology.host_ranks();
  return {ranks.begin(), ranks.end()};
}

}  // namespace

/// Runs one operation; the first one runs the trials before.
class CudaBackend::Run final : public SteppedOperation {
 public:
  /// `choose` returns the operation's steps after the trials.
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
    if ((ways_.ipc || ways_.mpi) && !owner_.has_ways_) {
      Steps finding = owner_.find_ways(place_.device.index);
      co_await finding;
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
    : resources(*owner.streams_, device, owner.image_, IpcOperations::buffer_bytes(owner.options_),
                kBytesBehind, owner.options_.registration_cache),
      pipe(resources, owner.streams_->make_stream(device),
           static_cast<std::size_t>(owner.options_.staged_piece_bytes),
           owner.counters_.staged_bytes),
      between(has_two_levels(owner.topology_)
                  ? std::make_optional<BetweenHosts>(pipe, owner.host_, owner.topology_)
                  : std::nullopt),
      peers(resources, owner.options_.ipc_sync, owner.is_of_all_, owner.ranks_,
            ranks_here(owner.topology_), static_cast<std::size_t>(owner.topology_.local_rank)),
      ipc(resources, peers, *owner.cache_, owner.exchange_, between ? &*between : nullptr,
          owner.counters_, owner.options_, owner.warn_),
      staged(resources, pipe, owner.host_, owner.counters_, owner.topology_.rank) {}

CudaBackend::CudaBackend(std::shared_ptr<const DriverApi> api, const void* image,
                         CudaOptions options, const BackendContext& context,
                         std::unique_ptr<Backend> gpu_aware_messages)
    : options_(std::move(options)),
      image_(image),
      topology_(*context.topology),
      ranks_(context.ranks),
      is_of_all_(context.set == 0),
      warn_(context.warn),
      host_(*context.host),
      visible_(options_.visible_devices, options_.symbols),
      streams_(std::make_shared<CudaStreams>(std::move(api), options_.on_gpu)),
      cache_(std::make_unique<RegistrationCache>(
          options_.registration_cache,
          static_cast<std::size_t>(options_.registration_cache_bytes))),
      exchange_(host_, topology_.size) {
  if (!gpu_aware_messages) return;
  gpu_aware_link_ = std::make_unique<GpuAwareLink>(std::move(gpu_aware_messages),
                                                   options_.wrap_mpi_calls, ranks_, topology_.rank);
}

CudaBackend::~CudaBackend() {
  if (!gpu_) return;
  streams_->cancel_waits();
  const bool is_over = streams_->drain(kLastBound) == DrainStatus::Reached;
  streams_->cancel_waits_by({});
  // A trial that was not released never ends.
  const auto bound = is_dead_ ? kLastBound : std::chrono::seconds{0};
  const bool direct_hangs = gpu_aware_link_ && gpu_aware_link_->hangs();
  if (is_over && !direct_hangs && gpu_->peers.trial_ends(bound)) return;
  gpu::abandon(std::move(gpu_));
  gpu::abandon(std::move(cache_));
  // The GPU may still write to the memory of its trial.
  if (!is_over) gpu::abandon(std::move(gpu_aware_link_));
}

CudaBackend::Gpu& CudaBackend::gpu(int device) {
  if (gpu_) return *gpu_;
  // A rank that has joined has no tensor.
  if (device < 0) device = streams_->own_device(topology_.local_rank);
  gpu_ = std::make_unique<Gpu>(*this, device);
  return *gpu_;
}

/// Whether the ranks try CUDA IPC; equal on all of them.
bool CudaBackend::may_use_ipc() const {
  return options_.ipc && (is_on_one_host() || has_two_levels(topology_)) &&
         static_cast<std::size_t>(topology_.local_size) <= kernels::kMostInputs;
}

/// Tries CUDA IPC and MPI; all ranks take part.
Steps CudaBackend::find_ways(int device) {
  std::string of_ipc, of_mpi;  // why they cannot be used
  has_ipc_ = false;
  if (may_use_ipc()) {
    Steps connecting =
        gpu(device).peers.connect(exchange_, visible_, options_.ipc_patience, of_ipc);
    co_await connecting;
    has_ipc_ = of_ipc.empty();
  }
  if (gpu_aware_link_ && !(has_ipc_ && is_on_one_host())) {
    GpuResources& resources = gpu(device).resources;
    co_await gpu_aware_link_->prove(resources, exchange_, options_.ipc_patience, of_mpi);
    if (of_mpi.empty()) {
      direct_ = std::make_unique<GpuAwareOperations>(resources, *gpu_aware_link_, counters_);
    }
  }
  tell(of_ipc, of_mpi);
  has_ways_ = true;
}

/// Warns in one line that data is moved in another way, and why.
void CudaBackend::tell(const std::string& of_ipc, const std::string& of_mpi) const {
  if (of_ipc.empty() && of_mpi.empty()) return;
  const std::string staged = "staged through host memory";
  const std::string by_mpi = "left to MPI, and " + staged + " where MPI does not serve it";
  const std::string what = has_ipc_ ? "what CUDA IPC does not move" : "what is on GPUs";
  std::string text;
  if (!of_ipc.empty()) {
    text = "CUDA IPC cannot be used, and what is on GPUs is " + (direct_ ? by_mpi : staged) + ": " +
           of_ipc + " (RONDE_CUDA_IPC=0 spares the trial)" + (of_mpi.empty() ? "" : "; ");
  }
  if (!of_mpi.empty()) {
    text += "the MPI library says that it takes addresses of GPUs, but a trial failed, and " +
            what + " is " + staged + ": " + of_mpi + ". " +
            (gpu_aware_link_->is_over()
                 ? "MPI may still be at it, and is not finalised at the end, for which mpirun may "
                   "report the job as failed: set RONDE_GPU_AWARE_MPI=0 for the next one"
                 : "RONDE_GPU_AWARE_MPI=0 spares the trial");
  }
  warn_(text);
}

/// Returns what moves an operation from GPU to GPU, and counts it; null: it is staged.
Collectives* CudaBackend::choose(Ways ways) noexcept {
  if (has_ipc_ && ways.ipc) {
    ++counters_.ipc_operations;
    return &gpu_->ipc;
  }
  const bool by_mpi = direct_ && ways.mpi;
  ++(by_mpi ? counters_.mpi_operations : counters_.staged_operations);
  return by_mpi ? direct_.get() : nullptr;
}

/// Across hosts CUDA IPC serves only large sums: small ones are not worth several exchanges between
/// hosts. Where sums must be exact it serves all: the other ways may add in another order.
CudaBackend::Ways CudaBackend::ways_of_sum(const AllreduceCall& call) const {
  const std::size_t bytes = total_elements(call.segments) * size_of(call.effective_wire_dtype());
  const bool crosses =
      has_two_levels(topology_) && (options_.exact || bytes > options_.one_shot_bytes);
  return {.ipc = is_on_one_host() || crosses, .mpi = true};
}

std::unique_ptr<Operation> CudaBackend::allreduce(const AllreduceCall& call) {
  return std::make_unique<Run>(
      *this, call.place, ways_of_sum(call), [call](Gpu& gpu, Collectives* by) {
        return by != nullptr ? by->allreduce(call) : gpu.staged.allreduce(call);
      });
}

std::unique_ptr<Operation> CudaBackend::broadcast(const BroadcastCall& call) {
  return std::make_unique<Run>(
      *this, call.place, Ways{.ipc = is_on_one_host()}, [call](Gpu& gpu, Collectives* by) {
        return by != nullptr ? gpu.ipc.broadcast(call) : gpu.staged.broadcast(call);
      });
}

std::unique_ptr<Operation> CudaBackend::allgather(const AllgatherCall& call) {
  return std::make_unique<Run>(*this, call.place, ways(), [call](Gpu& gpu, Collectives* by) {
    return by != nullptr ? by->allgather(call) : gpu.staged.allgather(call);
  });
}

std::unique_ptr<Operation> CudaBackend::alltoall(const AlltoallCall& call) {
  return std::make_unique<Run>(*this, call.place, ways(), [call](Gpu& gpu, Collectives* by) {
    return by != nullptr ? by->alltoall(call) : gpu.staged.alltoall(call);
  });
}

std::unique_ptr<Operation> CudaBackend::reducescatter(const ReducescatterCall& call) {
  return std::make_unique<Run>(*this, call.place, ways(), [call](Gpu& gpu, Collectives* by) {
    return by != nullptr ? by->reducescatter(call) : gpu.staged.reducescatter(call);
  });
}

std::unique_ptr<Operation> CudaBackend::send(const SendCall& call) {
  return std::make_unique<Run>(*this, call.place, Ways{},
                               [call](Gpu& gpu, Collectives*) { return gpu.staged.send(call); });
}

std::unique_ptr<Operation> CudaBackend::recv(const RecvCall& call) {
  return std::make_unique<Run>(*this, call.place, Ways{},
                               [call](Gpu& gpu, Collectives*) { return gpu.staged.recv(call); });
}

/// Queued work continues; CudaStreams::cancel_waits() ends its waits for peers.
void CudaBackend::abort() noexcept {
  if (gpu_aware_link_) gpu_aware_link_->abort();
  is_dead_ = true;
  if (!gpu_) return;
  streams_->cancel_waits_by([this] { gpu_->peers.release(); });
  gpu_->peers.release_trial();
}

void CudaBackend::release_peer_memory() {
  if (!gpu_) return;
  if (streams_->drain(kLastBound) != DrainStatus::Reached) {
    throw Error("the GPU did not finish what was queued on it");
  }
  gpu_->ipc.forget();
  gpu_->peers.forget();
}

/// A process set that is removed comes here without release_peer_memory().
void CudaBackend::close() {
  release_peer_memory();
  if (gpu_aware_link_) gpu_aware_link_->close();
}

StatsGroup CudaBackend::stats() const {
  StatsGroup group{"cuda",
                   {{"ipc_operations", counters_.ipc_operations},
                    {"staged_operations", counters_.staged_operations},
                    {"mpi_operations", counters_.mpi_operations},
                    {"mpi_sent_bytes", gpu_aware_link_ ? gpu_aware_link_->sent_bytes() : 0},
                    {"one_shots", counters_.one_shots},
                    {"two_shots", counters_.two_shots},
                    {"across_hosts", counters_.across_hosts},
                    {"direct", counters_.direct},
                    {"flag_syncs", counters_.flag_syncs},
                    {"kernel_syncs", counters_.kernel_syncs},
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
    return std::make_unique<cuda::CudaBackend>(
        driver.api, image, options, context,
        cuda::make_direct_messages(options.gpu_aware_mpi,
                                   cuda::GpuAwareOperations::most_ranks(options), context));
  };
  return factory;
}

}  // namespace ronde

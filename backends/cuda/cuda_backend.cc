// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "backends/cuda/kernel_image.h"
#include "backends/device/abandon.h"
#include "ronde/error.h"

namespace ronde {
namespace cuda {
namespace {

/// What a destructor gives work that is still queued.
constexpr std::chrono::seconds kLastBound{2};
/// Below NCCL.
constexpr int kPriority = 10;

}  // namespace

/// Runs one operation, and finds the way before the first.
class CudaBackend::Run final : public device::SteppedOperation {
 public:
  /// `choose`: the operation's steps, once the way is known. `needs_path`: of all ranks, which find
  /// it. A message is between two: before a collective has found a way for it, it is staged.
  Run(CudaBackend& owner, Placement place, bool needs_path,
      std::function<device::Steps(Gpu& gpu, Path path)> choose)
      : owner_(owner), place_(place), needs_path_(needs_path), choose_(std::move(choose)) {
    begin(run());
  }
  /// Half-way only where the group is dead.
  ~Run() override { owner_.exchange_.cancel(); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

 private:
  device::Steps run() {
    Gpu& gpu = owner_.gpu(place_.device.index);
    if (needs_path_ && owner_.path_ == Path::Unknown) {
      device::Steps finding = owner_.find_path(place_.device.index);
      co_await finding;
    }
    const bool is_on_path = needs_path_ || owner_.path_ == Path::Direct;
    const Path path = is_on_path ? owner_.path_ : Path::Staged;
    owner_.count(path);
    gpu.bench.run_after(place_.after);
    device::Steps steps = choose_(gpu, path);
    co_await steps;
    set_event(owner_.streams_->mark(gpu.bench.stream()));
  }

  CudaBackend& owner_;
  const Placement place_;
  const bool needs_path_;
  const std::function<device::Steps(Gpu&, Path)> choose_;
};

CudaBackend::Gpu::Gpu(CudaBackend& owner, int device)
    : bench(*owner.streams_, device, owner.image_, IpcOperations::buffer_bytes(owner.options_),
            kTrialBytes),
      peers(bench, *owner.cache_, owner.ranks_, owner.rank_),
      ipc(bench, peers, *owner.cache_, owner.exchange_, owner.counters_, owner.options_,
          owner.warn_),
      staged(bench, owner.streams_->make_stream(device), owner.host_, owner.counters_,
             owner.options_, owner.rank_) {}

CudaBackend::CudaBackend(std::shared_ptr<const DriverApi> api, const void* image,
                         CudaOptions options, const BackendContext& context,
                         std::unique_ptr<Backend> direct_messages)
    : options_(std::move(options)),
      image_(image),
      rank_(context.topology->rank),
      size_(context.topology->size),
      local_rank_(context.topology->local_rank),
      hosts_(context.topology->hosts()),
      ranks_(context.ranks),
      warn_(context.warn),
      host_(*context.host),
      visible_(options_.visible_devices, options_.symbols),
      streams_(std::make_shared<CudaStreams>(std::move(api))),
      cache_(std::make_unique<RegistrationCache>(
          options_.registration_cache,
          static_cast<std::size_t>(options_.registration_cache_bytes))),
      exchange_(host_, size_) {
  if (!direct_messages) return;
  direct_link_ = std::make_unique<DirectLink>(std::move(direct_messages), ranks_, rank_);
}

CudaBackend::~CudaBackend() {
  const bool direct_hangs = direct_link_ && direct_link_->hangs();
  if (!gpu_ || (streams_->settle(kLastBound) && !gpu_->peers.hangs() && !direct_hangs)) return;
  device::abandon(std::move(gpu_));
  device::abandon(std::move(cache_));
}

CudaBackend::Gpu& CudaBackend::gpu(int device) {
  if (gpu_) return *gpu_;
  // A rank that has joined does not know of a tensor.
  if (device < 0) device = streams_->own_device(local_rank_ % streams_->device_count());
  gpu_ = std::make_unique<Gpu>(*this, device);
  return *gpu_;
}

/// Why the ranks need not even try, or an empty text; the same on all of them.
std::string CudaBackend::why_never_ipc() const {
  if (!options_.ipc) return "RONDE_CUDA_IPC=0";
  if (hosts_ > 1) return "the ranks are on several hosts";
  if (static_cast<std::size_t>(size_) > kernels::kMostInputs) {
    return "there are more than " + std::to_string(kernels::kMostInputs) + " ranks on a host";
  }
  return {};
}

device::Steps CudaBackend::find_path(int device) {
  std::string problem = why_never_ipc();
  if (problem.empty()) {
    device::Steps connecting =
        gpu(device).peers.connect(exchange_, visible_, options_.ipc_patience, problem);
    co_await connecting;
    if (!problem.empty()) {
      warn_("CUDA IPC cannot be used, and what is on GPUs is " +
            std::string(direct_link_ ? "left to MPI: " : "staged through host memory: ") + problem);
    }
  }
  path_ = problem.empty() ? Path::Ipc : Path::Staged;
  if (path_ == Path::Ipc || !direct_link_) co_return;
  device::Steps finding = find_direct_path(device);
  co_await finding;
}

device::Steps CudaBackend::find_direct_path(int device) {
  Workbench& bench = gpu(device).bench;
  std::string problem;
  if (DirectOperations::has_room(bench.fusion_bytes(), static_cast<std::size_t>(size_))) {
    device::Steps proving = direct_link_->prove(bench, exchange_, options_.ipc_patience, problem);
    co_await proving;
  } else {
    problem = "the fusion buffer has no room for " + std::to_string(size_) +
              " ranks: choose a larger RONDE_FUSION_BYTES";
  }
  if (!problem.empty()) {
    warn_(
        "the MPI library says that it takes addresses of GPUs, but a trial failed, and what is on "
        "GPUs is staged through host memory (RONDE_GPU_AWARE_MPI=0 spares the trial): " +
        problem);
    co_return;
  }
  direct_ = std::make_unique<DirectOperations>(bench, *direct_link_, counters_, options_);
  path_ = Path::Direct;
}

void CudaBackend::count(Path path) noexcept {
  std::atomic<std::uint64_t>& counter = path == Path::Ipc      ? counters_.ipc_operations
                                        : path == Path::Direct ? direct_operations_
                                                               : counters_.staged_operations;
  counter.fetch_add(1, std::memory_order_relaxed);
}

std::unique_ptr<Operation> CudaBackend::allreduce(const AllreduceCall& call) {
  return std::make_unique<Run>(
      *this, call.place, true,
      [this, call, ranks = static_cast<std::size_t>(size_)](Gpu& gpu, Path path) {
        if (path == Path::Direct) return direct_->allreduce(call);
        return path == Path::Ipc ? gpu.ipc.allreduce(call) : gpu.staged.allreduce(call, ranks);
      });
}

std::unique_ptr<Operation> CudaBackend::broadcast(const BroadcastCall& call) {
  return std::make_unique<Run>(*this, call.place, true, [this, call](Gpu& gpu, Path path) {
    if (path == Path::Direct) return direct_->broadcast(call);
    return path == Path::Ipc ? gpu.ipc.broadcast(call) : gpu.staged.broadcast(call);
  });
}

std::unique_ptr<Operation> CudaBackend::allgather(const AllgatherCall& call) {
  return std::make_unique<Run>(*this, call.place, true, [this, call](Gpu& gpu, Path path) {
    if (path == Path::Direct) return direct_->allgather(call);
    return path == Path::Ipc ? gpu.ipc.allgather(call) : gpu.staged.allgather(call);
  });
}

std::unique_ptr<Operation> CudaBackend::alltoall(const AlltoallCall& call) {
  return std::make_unique<Run>(*this, call.place, true, [this, call](Gpu& gpu, Path path) {
    if (path == Path::Direct) return direct_->alltoall(call);
    return path == Path::Ipc ? gpu.ipc.alltoall(call) : gpu.staged.alltoall(call);
  });
}

std::unique_ptr<Operation> CudaBackend::reducescatter(const ReducescatterCall& call) {
  return std::make_unique<Run>(*this, call.place, true, [this, call](Gpu& gpu, Path path) {
    if (path == Path::Direct) return direct_->reducescatter(call);
    return path == Path::Ipc ? gpu.ipc.reducescatter(call) : gpu.staged.reducescatter(call);
  });
}

std::unique_ptr<Operation> CudaBackend::send(const SendCall& call) {
  return std::make_unique<Run>(*this, call.place, false, [this, call](Gpu& gpu, Path path) {
    return path == Path::Direct ? direct_->send(call) : gpu.staged.send(call);
  });
}

std::unique_ptr<Operation> CudaBackend::recv(const RecvCall& call) {
  return std::make_unique<Run>(*this, call.place, false, [this, call](Gpu& gpu, Path path) {
    return path == Path::Direct ? direct_->recv(call) : gpu.staged.recv(call);
  });
}

/// What is queued runs on: it waits for nothing that a peer has yet to do (CudaStreams::settle).
void CudaBackend::abort() noexcept {
  if (direct_link_) direct_link_->abort();
}

void CudaBackend::let_go() {
  if (!gpu_) return;
  if (!streams_->settle(kLastBound)) throw Error("the GPU did not finish what was queued on it");
  gpu_->ipc.forget();
  gpu_->peers.forget();
}

/// Of a set that is removed nobody has let go before.
void CudaBackend::close() {
  let_go();
  if (direct_link_) direct_link_->close();
}

StatsGroup CudaBackend::stats() const {
  StatsGroup group{"cuda",
                   {{"ipc_operations", counters_.ipc_operations},
                    {"staged_operations", counters_.staged_operations},
                    {"mpi_operations", direct_operations_},
                    {"mpi_sent_bytes", direct_link_ ? direct_link_->sent_bytes() : 0},
                    {"one_shots", counters_.one_shots},
                    {"two_shots", counters_.two_shots},
                    {"direct", counters_.direct},
                    {"handovers", counters_.handovers},
                    {"packed_bytes", counters_.packed_bytes},
                    {"staged_bytes", counters_.staged_bytes}}};
  for (auto& [name, value] : cache_->stats().counters) {
    group.counters.emplace_back("registration_" + name, value);
  }
  for (auto& [name, value] : streams_->stats().counters) group.counters.emplace_back(name, value);
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
        cuda::make_direct_messages(options.gpu_aware_mpi, context));
  };
  return factory;
}

}  // namespace ronde

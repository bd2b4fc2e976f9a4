// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/nccl.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "backends/gpu/base/abandon.h"
#include "backends/gpu/base/poll_until.h"
#include "backends/gpu/gpu_backends.h"
#include "backends/nccl/channel.h"
#include "backends/nccl/operation.h"

namespace ronde {
namespace nccl {
namespace {

using Clock = std::chrono::steady_clock;

/// The end of an operation, which asks NCCL for errors until it has passed.
class WatchedEvent final : public DeviceEvent {
 public:
  WatchedEvent(std::shared_ptr<const DeviceEvent> event,
               std::shared_ptr<const BlockingCommunicator> communicator, std::string doing)
      : event_(std::move(event)),
        communicator_(std::move(communicator)),
        doing_(std::move(doing)) {}

  bool passed() const override {
    if (event_->passed()) return true;
    communicator_->watch(doing_);
    return false;
  }

  void order(void* stream) const override { event_->order(stream); }

 private:
  const std::shared_ptr<const DeviceEvent> event_;
  const std::shared_ptr<const BlockingCommunicator> communicator_;
  const std::string doing_;
};

/// The communicator's thread queues the work.
class IssuedOperation final : public Operation {
 public:
  IssuedOperation(BlockingCommunicator& communicator, std::shared_ptr<Work> work)
      : communicator_(communicator), work_(std::move(work)) {
    communicator_.start([work = work_] { work->run(); });
  }

  bool poll() override { return communicator_.poll(); }
  std::shared_ptr<const DeviceEvent> event() const override { return work_->event(); }

 private:
  BlockingCommunicator& communicator_;
  const std::shared_ptr<Work> work_;
};

/// The rank's streams, on the GPU that NCCL has connected.
class Streams final : public DeviceStreams {
 public:
  explicit Streams(const Channel& channel)
      : own_(channel.streams),
        communicator_(channel.communicator),
        device_(channel.resources.context()->index()) {}

  std::shared_ptr<const DeviceEvent> mark(int device, void* stream) override {
    if (device != device_) {
      throw UsageError("a tensor is on GPU " + std::to_string(device) +
                       ", but NCCL has connected this rank by GPU " + std::to_string(device_) +
                       ", that of its local rank: put tensors on ronde::local_device()");
    }
    return own_->mark(device, stream);
  }
  std::shared_ptr<const DeviceEvent> copy(int device, void* to, const void* from,
                                          std::size_t bytes) override {
    return own_->copy(device, to, from, bytes);
  }
  /// A thread that NCCL blocks may still queue work.
  DrainStatus drain(std::chrono::nanoseconds bound) noexcept override {
    const auto deadline = Clock::now() + bound;
    if (!communicator_->is_idle(deadline)) return DrainStatus::NotYet;
    return own_->drain(std::max(deadline - Clock::now(), Clock::duration::zero()));
  }

 private:
  const std::shared_ptr<cuda::CudaStreams> own_;
  const std::shared_ptr<const BlockingCommunicator> communicator_;
  const int device_;
};

/// Moves and reduces data on GPUs by NCCL.
///
/// Thread-safety: as Backend.
class NcclBackend final : public Backend {
 public:
  explicit NcclBackend(std::shared_ptr<Channel> channel)
      : channel_(std::move(channel)), streams_(std::make_shared<Streams>(*channel_)) {}
  ~NcclBackend() override;

  std::string_view name() const noexcept override { return "nccl"; }
  Capabilities capabilities() const override { return cuda::gpu_capabilities(); }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return issue(channel_->counts.collectives, call);
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return issue(channel_->counts.collectives, call);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return issue(channel_->counts.collectives, call);
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return issue(channel_->counts.collectives, call);
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return issue(channel_->counts.collectives, call);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return issue(channel_->counts.messages, call);
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return issue(channel_->counts.messages, call);
  }

  std::shared_ptr<DeviceStreams> device_streams() const override { return streams_; }
  void abort() noexcept override;
  void close() override;
  StatsGroup stats() const override;

 private:
  template <typename Call>
  std::unique_ptr<Operation> issue(std::atomic<std::uint64_t>& count, const Call& call) {
    ++count;
    return std::make_unique<IssuedOperation>(*channel_->communicator, make_work(channel_, call));
  }

  std::shared_ptr<Channel> channel_;
  const std::shared_ptr<Streams> streams_;
  bool hangs_ = false;  ///< NCCL does, in a call or an abort, and may use the channel
};

NcclBackend::~NcclBackend() {
  abort();
  const auto bound = hangs_ ? std::chrono::milliseconds{0} : channel_->options.abort_bound;
  if (streams_->drain(bound) == DrainStatus::Reached && !hangs_) return;
  channel_->communicator->detach();
  gpu::abandon(std::make_unique<std::shared_ptr<Channel>>(std::move(channel_)));
}

/// A second call does not wait again. A thread or an abort that does not return is left alone;
/// Streams::drain() reports its work.
void NcclBackend::abort() noexcept {
  const auto deadline = hangs_ ? Clock::now() : Clock::now() + channel_->options.abort_bound;
  const bool has_aborted = channel_->communicator->abort(deadline);
  const bool is_idle = channel_->communicator->is_idle(deadline);
  hangs_ = hangs_ || !has_aborted || !is_idle;
}

void NcclBackend::close() {
  channel_->communicator->start([channel = channel_] { channel->close(); });
  const auto deadline = Clock::now() + channel_->options.close_bound;
  if (cuda::poll_until(deadline, [&] { return channel_->communicator->poll(); })) return;
  throw Error(
      "NCCL failed while closing a communicator: what is in progress has not ended in time, or "
      "not all ranks close theirs");
}

StatsGroup NcclBackend::stats() const {
  const Counts& counts = channel_->counts;
  return {"nccl",
          {{"collectives", counts.collectives},
           {"messages", counts.messages},
           {"bytes", counts.bytes},
           {"direct_chunks", counts.direct_chunks},
           {"packed_chunks", counts.packed_chunks},
           {"chunks_in_order", counts.chunks_in_order},
           {"handles_lost", channel_->streams->lost()}}};
}

/// Throws Error if this process cannot use them.
Libraries load_libraries(const NcclOptions& options) {
  const cuda::LoadedDriver driver = cuda::load_driver(options.driver_symbols);
  const std::string no_gpu = cuda::why_no_gpu(driver, options.kernel_image);
  if (!no_gpu.empty()) throw Error(no_gpu);
  const LoadedNccl nccl = load_nccl(options.nccl_symbols);
  if (!nccl.api) throw Error(nccl.problem);
  return {driver.api, nccl.api, nccl.version};
}

constexpr int kFellBack = -1;  // in place of a device: all ranks use the fallback

/// Connects the ranks, whose GPU is `device`; the backend of all ranks, which is made first, sets
/// it for those of process sets. Where NCCL cannot serve the ranks, all set `problem` and return
/// null. Throws Error on all ranks if it fails on one.
std::unique_ptr<Backend> connect_ranks(const NcclOptions& options, BackendContext& context,
                                       std::atomic<int>& device, std::string& problem) {
  Libraries libraries;
  std::shared_ptr<cuda::CudaStreams> streams;
  const std::vector<RankGpu> ranks = exchange_gpus(context, [&] {
    libraries = load_libraries(options);
    streams = std::make_shared<cuda::CudaStreams>(libraries.driver, options.on_gpu);
    if (context.set == 0) device = streams->own_device(context.topology->local_rank);
    return describe_rank(libraries, options, device);
  });
  problem = shared_gpu(ranks);
  if (problem.empty()) problem = mixed_versions(ranks);
  if (!problem.empty()) return nullptr;
  return std::make_unique<NcclBackend>(connect(libraries, options, context, streams, device));
}

std::unique_ptr<Backend> make_backend(const NcclOptions& options, BackendContext& context,
                                      std::atomic<int>& device) {
  if (context.set != 0 && device == kFellBack) return options.fallback(context);
  std::string problem;
  try {
    if (auto backend = connect_ranks(options, context, device, problem)) return backend;
  } catch (const GroupError&) {
    throw;  // a rank is lost: there is no group left to fall back with
  } catch (const Error& error) {
    if (!options.fallback || context.set != 0) throw;
    problem = error.what();
  }
  if (!options.fallback) throw UsageError(problem);
  context.warn(problem + ". In its place the backend 'cuda' moves tensors on GPUs");
  device = kFellBack;
  return options.fallback(context);
}

}  // namespace

void Work::run() {
  resources().run_after(after_);
  issue();
  event_ = std::make_shared<WatchedEvent>(channel_->streams->mark(resources().stream()),
                                          channel_->communicator, doing_);
}

}  // namespace nccl

BackendFactory nccl_backend_factory(const NcclOptions& options) {
  BackendFactory factory;
  factory.device = DeviceKind::Cuda;
  factory.priority = 20;
  factory.serves_sets = true;
  factory.problem = [options]() -> std::string {
    try {
      nccl::load_libraries(options);
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  factory.create = [options,
                    device = std::make_shared<std::atomic<int>>()](BackendContext& context) {
    return nccl::make_backend(options, context, *device);
  };
  return factory;
}

}  // namespace ronde

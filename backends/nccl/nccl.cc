// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/nccl.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "backends/gpu/base/abandon.h"
#include "backends/gpu/base/host_exchange.h"
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

/// Moves and reduces data on GPUs by NCCL.
///
/// Thread-safety: as Backend.
class NcclBackend final : public Backend {
 public:
  explicit NcclBackend(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  ~NcclBackend() override;

  std::string_view name() const noexcept override { return "nccl"; }
  Capabilities capabilities() const override { return cuda::gpu_capabilities(); }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return issue(channel_->counts.collectives, call, "reducing");
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return issue(channel_->counts.collectives, call, "broadcasting");
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return issue(channel_->counts.collectives, call, "gathering");
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return issue(channel_->counts.collectives, call, "exchanging");
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    return issue(channel_->counts.collectives, call, "reducing and scattering");
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return issue(channel_->counts.messages, call, "sending");
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return issue(channel_->counts.messages, call, "receiving");
  }

  std::shared_ptr<DeviceStreams> device_streams() const override { return channel_->streams; }
  void abort() noexcept override;
  void close() override;
  StatsGroup stats() const override;

 private:
  template <typename Call>
  std::unique_ptr<Operation> issue(std::atomic<std::uint64_t>& count, const Call& call,
                                   const char* verb) {
    ++count;
    return std::make_unique<IssuedOperation>(*channel_->communicator,
                                             make_work(channel_, call, verb));
  }

  std::shared_ptr<Channel> channel_;
  bool hangs_ = false;  ///< NCCL does, in a call or an abort, and may use the channel
};

NcclBackend::~NcclBackend() {
  abort();
  const auto bound = hangs_ ? std::chrono::milliseconds{0} : channel_->options.abort_bound;
  if (channel_->streams->drain(bound) == DrainStatus::Reached && !hangs_) return;
  channel_->communicator->detach();
  gpu::abandon(std::make_unique<std::shared_ptr<Channel>>(std::move(channel_)));
}

/// A second call does not wait again. A thread or an abort that does not return is left alone;
/// drain() reports its work.
void NcclBackend::abort() noexcept {
  const auto deadline = hangs_ ? Clock::now() : Clock::now() + channel_->options.abort_bound;
  const bool has_aborted = channel_->communicator->abort(deadline);
  const bool is_idle = channel_->communicator->is_idle(deadline);
  hangs_ = hangs_ || !has_aborted || !is_idle;
}

void NcclBackend::close() {
  channel_->communicator->start([channel = channel_] { channel->close(); });
  const auto deadline = Clock::now() + channel_->options.close_bound;
  if (gpu::poll_until(deadline, [&] { return channel_->communicator->poll(); })) return;
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
/// it for those of process sets. Throws Error on all ranks if it fails on one, UsageError where
/// NCCL cannot serve the ranks.
std::unique_ptr<Backend> connect_ranks(const NcclOptions& options, BackendContext& context,
                                       std::atomic<int>& device) {
  Libraries libraries;
  std::shared_ptr<cuda::CudaStreams> streams;
  const std::vector<std::string> ranks = in_step(context, [&] {
    libraries = load_libraries(options);
    streams = std::make_shared<cuda::CudaStreams>(libraries.driver, options.on_gpu);
    if (context.set == 0) device = streams->own_device(context.topology->local_rank);
    return describe_rank(libraries, options, device);
  });
  const std::string conflict = conflict_of(context, ranks);
  if (!conflict.empty()) throw UsageError(conflict);
  return std::make_unique<NcclBackend>(connect(libraries, options, context, streams, device));
}

std::unique_ptr<Backend> make_backend(const NcclOptions& options, BackendContext& context,
                                      std::atomic<int>& device) {
  if (context.set != 0 && device == kFellBack) return options.fallback(context);
  try {
    return connect_ranks(options, context, device);
  } catch (const GroupError&) {
    throw;  // a rank is lost: there is no group left to fall back with
  } catch (const Error& error) {
    if (!options.fallback || context.set != 0) throw;
    context.warn(std::string(error.what()) +
                 ". In its place the backend 'cuda' moves tensors on GPUs");
  }
  device = kFellBack;
  return options.fallback(context);
}

}  // namespace

void Work::run() {
  resources().run_after(after_);
  issue_(*this);
  event_ = std::make_shared<WatchedEvent>(cuda::CudaStreams::mark(resources().stream()),
                                          channel_->communicator, doing_);
}

}  // namespace nccl

BackendFactory nccl_backend_factory(const NcclOptions& options) {
  BackendFactory factory;
  factory.device = DeviceKind::Cuda;
  factory.priority = 20;
  factory.serves_sets = true;
  factory.problem = [options] { return gpu::problem_of([&] { nccl::load_libraries(options); }); };
  factory.create = [options,
                    device = std::make_shared<std::atomic<int>>()](BackendContext& context) {
    return nccl::make_backend(options, context, *device);
  };
  return factory;
}

}  // namespace ronde

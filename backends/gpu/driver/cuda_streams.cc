// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/cuda_streams.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/gpu/base/poll_until.h"

namespace ronde::cuda {
namespace {

/// Work queued on a stream that is being captured runs only when its graph does.
void refuse_captured(const DeviceContext& context, StreamHandle stream) {
  const DriverApi& api = context.api();
  const Current current(context);
  int status = kCaptureNone;
  const Result result = api.stream_is_capturing(stream, &status);
  if (result == kCaptureImplicit) {
    throw UsageError(
        "its stream is the default one, which cannot be used while one that waits for it is being "
        "captured into a CUDA graph: use another stream, or one made with cudaStreamNonBlocking "
        "for the capture");
  }
  if (result != kSuccess) {
    throw DriverError(api, api.stream_is_capturing.symbol(), result, "ordering streams");
  }
  if (status != kCaptureNone) {
    throw UsageError(
        "its stream is being captured into a CUDA graph, of which operations of Ronde's cannot be "
        "a part: end the capture, launch the graph, and give its results to Ronde then");
  }
}

class CudaEvent final : public DeviceEvent {
 public:
  CudaEvent(std::shared_ptr<const DeviceContext> context, Event event)
      : context_(std::move(context)), event_(std::move(event)) {}

  bool passed() const override { return event_.is_done(); }

  void order(void* stream) const override {
    refuse_captured(*context_, static_cast<StreamHandle>(stream));
    context_->call("ordering streams", &DriverApi::stream_wait_event,
                   static_cast<StreamHandle>(stream), event_.handle(), 0U);
  }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  const Event event_;
};

}  // namespace

CudaStreams::CudaStreams(std::shared_ptr<const DriverApi> api,
                         std::function<void(const std::string& uuid)> on_gpu)
    : api_(std::move(api)), on_gpu_(std::move(on_gpu)) {}

CudaStreams::Gpu& CudaStreams::gpu(int device) {
  const std::lock_guard lock(mutex_);
  if (!gpu_) {
    gpu_ = std::make_unique<Gpu>(std::make_shared<DeviceContext>(api_, device));
    if (on_gpu_) on_gpu_(gpu_->context->gpu().uuid);
  }
  if (gpu_->context->index() == device) return *gpu_;
  throw UsageError("a tensor is on GPU " + std::to_string(device) +
                   ", but those before it on GPU " + std::to_string(gpu_->context->index()) +
                   ": each rank trains on one GPU. Start a rank for each of them");
}

int CudaStreams::own_device(int local_rank) const {
  const std::lock_guard lock(mutex_);
  if (gpu_) return gpu_->context->index();
  int count = 0;
  check(*api_, "counting GPUs", api_->device_count, &count);
  return local_rank % std::max(count, 1);
}

std::shared_ptr<const DeviceContext> CudaStreams::context(int device) {
  return gpu(device).context;
}

std::shared_ptr<Stream> CudaStreams::make_stream(int device) {
  auto stream = std::make_shared<Stream>(gpu(device).context);
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
  return stream;
}

std::shared_ptr<const DeviceEvent> CudaStreams::mark(int device, void* stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) == kStreamPerThread) {
    throw UsageError(
        "cudaStreamPerThread is another stream on each thread, and Ronde has threads of its own: "
        "give a stream that was made, or the default one");
  }
  Gpu& gpu = this->gpu(device);
  refuse_captured(*gpu.context, static_cast<StreamHandle>(stream));
  return mark(gpu, static_cast<StreamHandle>(stream));
}

std::shared_ptr<const DeviceEvent> CudaStreams::mark(Gpu& gpu, StreamHandle stream) {
  Event event = gpu.events.take();
  gpu.context->call("ordering streams", &DriverApi::event_record, event.handle(), stream);
  return std::make_shared<CudaEvent>(gpu.context, std::move(event));
}

std::shared_ptr<const DeviceEvent> CudaStreams::mark(Stream& stream) {
  return mark(gpu(stream.context().index()), stream.handle());
}

std::shared_ptr<const DeviceEvent> CudaStreams::copy(int device, void* to, const void* from,
                                                     std::size_t bytes) {
  if (!copies_) copies_ = make_stream(device);
  copies_->copy(address_of(to), address_of(from), bytes, "copying between the GPU and its host");
  return mark(*copies_);
}

void CudaStreams::cancel_waits_by(std::function<void()> release) {
  const std::lock_guard lock(mutex_);
  release_ = std::move(release);
}

void CudaStreams::cancel_waits() noexcept {
  const std::lock_guard lock(mutex_);
  if (release_) release_();
}

DrainStatus CudaStreams::drain(std::chrono::nanoseconds bound) noexcept {
  try {
    const auto deadline = std::chrono::steady_clock::now() + bound;
    std::vector<std::weak_ptr<Stream>> streams;
    {
      const std::lock_guard lock(mutex_);
      streams = streams_;
    }
    for (const std::weak_ptr<Stream>& each : streams) {
      const std::shared_ptr<Stream> stream = each.lock();
      if (stream && !poll_until(deadline, [&] { return stream->is_idle(); }))
        return DrainStatus::NotYet;
    }
    return DrainStatus::Reached;
  } catch (const std::exception&) {
    return DrainStatus::Unknown;
  }
}

std::uint64_t CudaStreams::lost() const {
  const std::lock_guard lock(mutex_);
  return gpu_ ? gpu_->context->lost() : 0;
}

}  // namespace ronde::cuda

// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/cuda_streams.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/gpu/base/abandon.h"

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
    throw DriverError(api, api.stream_is_capturing.symbol(), result, kOrdering);
  }
  if (status != kCaptureNone) {
    throw UsageError(
        "its stream is being captured into a CUDA graph, of which operations of Ronde's cannot be "
        "a part: end the capture, launch the graph, and give its results to Ronde then");
  }
}

class CudaEvent final : public DeviceEvent {
 public:
  /// The end of all work that is queued now on the stream.
  CudaEvent(const std::shared_ptr<const DeviceContext>& context, StreamHandle stream)
      : event_(context) {
    context->call(kOrdering, &DriverApi::event_record, event_.handle(), stream);
  }

  bool passed() const override { return event_.is_done(); }

  void order(void* stream) const override {
    refuse_captured(event_.context(), static_cast<StreamHandle>(stream));
    event_.context().call(kOrdering, &DriverApi::stream_wait_event,
                          static_cast<StreamHandle>(stream), event_.handle(), 0U);
  }

 private:
  const Event event_;
};

}  // namespace

CudaStreams::CudaStreams(std::shared_ptr<const DriverApi> api,
                         std::function<void(const std::string& uuid)> on_gpu)
    : api_(std::move(api)), on_gpu_(std::move(on_gpu)) {}

std::shared_ptr<const DeviceContext> CudaStreams::context(int device) {
  const std::lock_guard lock(mutex_);
  if (!context_) {
    context_ = std::make_shared<DeviceContext>(api_, device);
    if (on_gpu_) on_gpu_(context_->gpu().uuid);
  }
  if (context_->index() == device) return context_;
  throw UsageError("a tensor is on GPU " + std::to_string(device) + ", but this rank uses GPU " +
                   std::to_string(context_->index()) +
                   ", that of its first tensor, or of its local rank under NCCL: put all tensors "
                   "on ronde::local_device(), and start a rank for each GPU");
}

int CudaStreams::own_device(int local_rank) const {
  const std::lock_guard lock(mutex_);
  if (context_) return context_->index();
  int count = 0;
  check(*api_, "counting GPUs", api_->device_count, &count);
  return local_rank % std::max(count, 1);
}

std::shared_ptr<Stream> CudaStreams::make_stream(int device) {
  auto stream = std::make_shared<Stream>(context(device));
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
  const std::shared_ptr<const DeviceContext> context = this->context(device);
  refuse_captured(*context, static_cast<StreamHandle>(stream));
  return std::make_shared<CudaEvent>(context, static_cast<StreamHandle>(stream));
}

std::shared_ptr<const DeviceEvent> CudaStreams::mark(const Stream& stream) {
  return std::make_shared<CudaEvent>(stream.context(), stream.handle());
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

void CudaStreams::drain_after(std::function<bool(std::chrono::steady_clock::time_point)> is_idle) {
  const std::lock_guard lock(mutex_);
  is_idle_ = std::move(is_idle);
}

void CudaStreams::cancel_waits() noexcept {
  const std::lock_guard lock(mutex_);
  if (release_) release_();
}

DrainStatus CudaStreams::drain(std::chrono::nanoseconds bound) noexcept {
  try {
    const auto deadline = std::chrono::steady_clock::now() + bound;
    std::unique_lock lock(mutex_);
    const auto streams = streams_;
    const auto is_idle = is_idle_;
    lock.unlock();
    if (is_idle && !is_idle(deadline)) return DrainStatus::NotYet;
    for (const std::weak_ptr<Stream>& each : streams) {
      const std::shared_ptr<Stream> stream = each.lock();
      if (stream && !gpu::poll_until(deadline, [&] { return stream->is_idle(); })) {
        return DrainStatus::NotYet;
      }
    }
    return DrainStatus::Reached;
  } catch (const std::exception&) {
    return DrainStatus::Unknown;
  }
}

std::uint64_t CudaStreams::lost() const {
  const std::lock_guard lock(mutex_);
  return context_ ? context_->lost() : 0;
}

}  // namespace ronde::cuda

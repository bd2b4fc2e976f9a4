// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/device_context.h"

#include <utility>

namespace ronde::cuda {

DeviceContext::DeviceContext(std::shared_ptr<const DriverApi> api, int index)
    : api_(std::move(api)) {
  const std::string doing = "looking at GPU " + std::to_string(index);
  const std::string problem = describe_gpu(*api_, index, gpu_);
  if (!problem.empty()) throw Error("CUDA failed while " + doing + ": " + problem);
  check(*api_, doing, api_->device_get, &device_, index);
  check(*api_, doing, api_->device_attribute, &multiprocessors_, kAttributeMultiprocessorCount,
        device_);
  check(*api_, "making a context on GPU " + std::to_string(index), api_->primary_context_retain,
        &handle_, device_);
}

DeviceContext::~DeviceContext() {
  for (const EventHandle event : unused_events_) release(api_->event_destroy, event);
  count_lost(api_->primary_context_release(device_));
}

void DeviceContext::count_lost(Result result) const noexcept {
  if (result != kSuccess && result != kDeinitialized) ++lost_;
}

EventHandle DeviceContext::take_event() const {
  const std::lock_guard lock(mutex_);
  EventHandle event = nullptr;
  if (unused_events_.empty()) {
    // Giving one back must not need memory.
    unused_events_.reserve(events_made_ + 1);
    call("making an event", &DriverApi::event_create, &event, kEventDisableTiming);
    ++events_made_;
  } else {
    event = unused_events_.back();
    unused_events_.pop_back();
  }
  return event;
}

void DeviceContext::give_back(EventHandle event) const noexcept {
  const std::lock_guard lock(mutex_);
  unused_events_.push_back(event);
}

Current::Current(const DeviceContext& context) : context_(context) {
  const DriverApi& api = context.api();
  if (const Result result = api.context_push(context.handle_); result != kSuccess) {
    throw DriverError(api, api.context_push.symbol(), result,
                      "using the context of GPU " + std::to_string(context.index()));
  }
  static_cast<void>(api.exchange_capture_mode(&mode_));
}

Current::~Current() {
  static_cast<void>(context_.api().exchange_capture_mode(&mode_));
  ContextHandle popped = nullptr;
  context_.count_lost(context_.api().context_pop(&popped));
}

}  // namespace ronde::cuda

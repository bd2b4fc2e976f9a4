// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/event_signals.h"

#include <string>

namespace ronde::cuda {

SharedEvent::SharedEvent(std::shared_ptr<const DeviceContext> context)
    : context_(std::move(context)) {
  const Current current(*context_);
  check(context_->api(), "making an event for other processes", context_->api().event_create,
        &handle_, kEventDisableTiming | kEventInterprocess);
}

SharedEvent::SharedEvent(std::shared_ptr<const DeviceContext> context, const IpcEventHandle& handle,
                         int owner)
    : context_(std::move(context)) {
  const Current current(*context_);
  check(context_->api(), "opening an event of rank " + std::to_string(owner),
        context_->api().ipc_open_event, &handle_, handle);
}

SharedEvent& SharedEvent::operator=(SharedEvent&& other) noexcept {
  if (this == &other) return *this;
  destroy();
  context_ = std::move(other.context_);
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

IpcEventHandle SharedEvent::exported() const {
  IpcEventHandle handle{};
  const Current current(*context_);
  check(context_->api(), "exporting an event", context_->api().ipc_get_event, &handle, handle_);
  return handle;
}

void SharedEvent::destroy() noexcept {
  if (handle_ != nullptr) context_->release(context_->api().event_destroy, handle_);
  handle_ = nullptr;
}

EventSignals::EventSignals(std::shared_ptr<const DeviceContext> context, std::size_t size,
                           std::size_t own)
    : context_(std::move(context)), own_(own), events_(size) {
  for (SharedEvent& event : events_[own_]) event = SharedEvent(context_);
}

EventHandles EventSignals::exported() const {
  EventHandles handles{};
  for (std::size_t i = 0; i < handles.size(); ++i) handles[i] = events_[own_][i].exported();
  return handles;
}

void EventSignals::open(std::size_t rank, const EventHandles& handles, int name) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    events_[rank][i] = SharedEvent(context_, handles[i], name);
  }
}

void EventSignals::record(Mark mark, std::size_t half, Stream& stream) {
  const Current current(*context_);
  check(context_->api(), "telling the other ranks", context_->api().event_record,
        events_[own_][index_of(mark, half)].handle(), stream.handle());
}

void EventSignals::wait_for_all(Mark mark, std::size_t half, Stream& stream) {
  const Current current(*context_);
  for (std::size_t rank = 0; rank < events_.size(); ++rank) {
    if (rank == own_) continue;
    check(context_->api(), "waiting for the other ranks", context_->api().stream_wait_event,
          stream.handle(), events_[rank][index_of(mark, half)].handle(), 0U);
  }
}

void EventSignals::forget() noexcept {
  for (std::size_t rank = 0; rank < events_.size(); ++rank) {
    if (rank != own_) events_[rank] = {};
  }
}

}  // namespace ronde::cuda

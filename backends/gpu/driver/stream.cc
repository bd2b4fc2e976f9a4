// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/stream.h"

#include <mutex>
#include <utility>
#include <vector>

namespace ronde::cuda {
namespace {

constexpr const char* kOrdering = "ordering streams";

template <typename Handle>
bool is_over(const DeviceContext& context, const vendor::Entry<Result, Handle>& query,
             Handle handle) {
  const Current current(context);
  const Result result = query(handle);
  if (result == kNotReady) return false;
  if (result == kSuccess) return true;
  throw DriverError(context.api(), query.symbol(), result, "waiting for the GPU");
}

}  // namespace

struct EventPool::Shared {
  explicit Shared(std::shared_ptr<const DeviceContext> device) : context(std::move(device)) {}
  ~Shared() {
    for (const EventHandle event : free) context->release(context->api().event_destroy, event);
  }

  const std::shared_ptr<const DeviceContext> context;
  std::mutex mutex;
  std::vector<EventHandle> free;  ///< has room for all that were made
  std::size_t made = 0;
};

EventPool::EventPool(std::shared_ptr<const DeviceContext> context)
    : shared_(std::make_shared<Shared>(std::move(context))) {}

Event EventPool::take() {
  const std::lock_guard lock(shared_->mutex);
  EventHandle handle = nullptr;
  if (shared_->free.empty()) {
    // Giving one back must not need memory.
    shared_->free.reserve(shared_->made + 1);
    shared_->context->call("making an event", &DriverApi::event_create, &handle,
                           kEventDisableTiming);
    ++shared_->made;
  } else {
    handle = shared_->free.back();
    shared_->free.pop_back();
  }
  Event event;
  event.handle_ = {handle, Event::GiveBack{shared_}};
  return event;
}

void Event::GiveBack::operator()(EventHandle handle) const noexcept {
  const std::lock_guard lock(pool->mutex);
  pool->free.push_back(handle);
}

bool Event::is_done() const {
  const DeviceContext& context = *handle_.get_deleter().pool->context;
  return is_over(context, context.api().event_query, handle());
}

Stream::Stream(std::shared_ptr<const DeviceContext> context) : context_(std::move(context)) {
  int least = 0;
  int greatest = 0;
  context_->call("asking for priorities", &DriverApi::stream_priority_range, &least, &greatest);
  context_->call("making a stream", &DriverApi::stream_create, &handle_, kStreamNonBlocking,
                 greatest);
}

Stream::~Stream() {
  context_->release(context_->api().stream_destroy, handle_);
}

void Stream::wait_for(const Event& event) {
  context_->call(kOrdering, &DriverApi::stream_wait_event, handle_, event.handle(), 0U);
}

void Stream::record(const Event& event) {
  context_->call(kOrdering, &DriverApi::event_record, event.handle(), handle_);
}

void Stream::copy(DevicePointer to, DevicePointer from, std::size_t bytes,
                  const std::string& doing) {
  context_->call(doing, &DriverApi::copy, to, from, bytes, handle_);
}

void Stream::fill(DevicePointer to, unsigned char value, std::size_t bytes,
                  const std::string& doing) {
  context_->call(doing, &DriverApi::fill, to, value, bytes, handle_);
}

void Stream::write(std::span<const DevicePointer> words, std::uint32_t value) {
  do_with(words, value, kWriteWord, "signalling the other ranks");
}

void Stream::wait_for(std::span<const DevicePointer> words, std::uint32_t value) {
  do_with(words, value, kWaitForWord, "waiting for the other ranks");
}

void Stream::do_with(std::span<const DevicePointer> words, std::uint32_t value, unsigned operation,
                     const std::string& doing) {
  if (words.empty()) return;
  std::vector<StreamMemoryOperation> operations;
  for (const DevicePointer word : words) {
    operations.push_back({.operation = operation, .address = word, .value = value});
  }
  context_->call(doing, &DriverApi::stream_memory_operations, handle_,
                 static_cast<unsigned>(operations.size()), operations.data(), 0U);
}

bool Stream::is_idle() const {
  return is_over(*context_, context_->api().stream_query, handle_);
}

}  // namespace ronde::cuda

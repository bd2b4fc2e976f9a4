// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/driver/stream.h"

#include <utility>
#include <vector>

namespace ronde::cuda {
namespace {

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

bool Event::is_done() const {
  return is_over(context(), context().api().event_query, handle());
}

Stream::Stream(std::shared_ptr<const DeviceContext> context) {
  int least = 0;
  int greatest = 0;
  StreamHandle handle = nullptr;
  context->call("asking for priorities", &DriverApi::stream_priority_range, &least, &greatest);
  context->call("making a stream", &DriverApi::stream_create, &handle, kStreamNonBlocking,
                greatest);
  handle_ = {std::move(context), handle};
}

void Stream::wait_for(const Event& event) {
  context()->call(kOrdering, &DriverApi::stream_wait_event, handle(), event.handle(), 0U);
}

void Stream::record(const Event& event) {
  context()->call(kOrdering, &DriverApi::event_record, event.handle(), handle());
}

void Stream::copy(DevicePointer to, DevicePointer from, std::size_t bytes,
                  const std::string& doing) {
  context()->call(doing, &DriverApi::copy, to, from, bytes, handle());
}

void Stream::fill(DevicePointer to, unsigned char value, std::size_t bytes,
                  const std::string& doing) {
  context()->call(doing, &DriverApi::fill, to, value, bytes, handle());
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
  context()->call(doing, &DriverApi::stream_memory_operations, handle(),
                  static_cast<unsigned>(operations.size()), operations.data(), 0U);
}

bool Stream::is_idle() const {
  return is_over(*context(), context()->api().stream_query, handle());
}

}  // namespace ronde::cuda

// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/stream_channel.h"

#include <utility>

namespace ronde::nccl {
namespace {

std::string buffer_text(std::size_t bytes) {
  return "the fusion buffer of " + std::to_string(bytes) + " bytes";
}

}  // namespace

FusionMemory::FusionMemory(const BlockingCommunicator& communicator,
                           std::shared_ptr<const cuda::DeviceContext> context, std::size_t bytes)
    : context_(std::move(context)), api_(communicator.shared_api()), bytes_(bytes) {
  const cuda::Current current(*context_);
  communicator.call(
      "allocating " + buffer_text(bytes_) + " on GPU " + std::to_string(context_->index()),
      api_->allocate, &memory_, bytes_);
}

FusionMemory::~FusionMemory() {
  context_->release(api_->free, memory_);
}

void FusionMemory::enter(const BlockingCommunicator& communicator) {
  const std::string doing = "registering " + buffer_text(bytes_);
  const cuda::Current current(*context_);
  const BlockingCommunicator::Use use(communicator, doing);
  if (api_->has_windows()) {
    communicator.call(doing, api_->register_window, use.handle(), memory_, bytes_, &window_,
                      kSymmetricWindow);
  }
  if (window_ != nullptr) return;
  communicator.call(doing, api_->register_memory, use.handle(), memory_, bytes_, &registration_);
}

void FusionMemory::leave(const BlockingCommunicator& communicator) {
  const std::string doing = "deregistering " + buffer_text(bytes_);
  const cuda::Current current(*context_);
  const BlockingCommunicator::Use use(communicator, doing);
  if (window_ != nullptr) {
    return communicator.call(doing, api_->deregister_window, use.handle(), window_);
  }
  communicator.call(doing, api_->deregister_memory, use.handle(), registration_);
}

}  // namespace ronde::nccl

// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/fusion_memory.h"

#include <string>
#include <utility>

namespace ronde::nccl {
namespace {

std::string buffer_text(std::size_t bytes) {
  return "the fusion buffer of " + std::to_string(bytes) + " bytes";
}

}  // namespace

FusionMemory::FusionMemory(const Channel& channel,
                           std::shared_ptr<const cuda::DeviceContext> context, std::size_t bytes)
    : context_(std::move(context)), api_(channel.communicator->shared_api()), bytes_(bytes) {
  const cuda::Current current(*context_);
  channel.communicator->check(
      api_->allocate.symbol(), api_->allocate(&memory_, bytes_),
      "allocating " + buffer_text(bytes_) + " on GPU " + std::to_string(context_->index()));
}

FusionMemory::~FusionMemory() {
  context_->release(api_->free, memory_);
}

void FusionMemory::enter(const Channel& channel) {
  const std::string doing = "registering " + buffer_text(bytes_);
  const cuda::Current current(*context_);
  const BlockingCommunicator::Use use(*channel.communicator, doing);
  if (api_->has_windows()) {
    const auto& function = api_->register_window;
    channel.communicator->check(function.symbol(),
                                function(use.handle(), memory_, bytes_, &window_, kSymmetricWindow),
                                doing);
  }
  if (window_ != nullptr) return;
  const auto& function = api_->register_memory;
  channel.communicator->check(function.symbol(),
                              function(use.handle(), memory_, bytes_, &registration_), doing);
}

void FusionMemory::leave(const Channel& channel) {
  const std::string doing = "deregistering " + buffer_text(bytes_);
  const cuda::Current current(*context_);
  const BlockingCommunicator::Use use(*channel.communicator, doing);
  if (window_ != nullptr) {
    const auto& function = api_->deregister_window;
    return channel.communicator->check(function.symbol(), function(use.handle(), window_), doing);
  }
  const auto& function = api_->deregister_memory;
  channel.communicator->check(function.symbol(), function(use.handle(), registration_), doing);
}

}  // namespace ronde::nccl

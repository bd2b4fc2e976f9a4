// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/fusion_memory.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace ronde::nccl {
namespace {

/// Of NCCL's calls about memory, which wait for no other rank.
constexpr std::chrono::seconds kPatience{2};

/// Memory that a communicator knows.
class KnownMemory final : public cuda::Registration {
 public:
  KnownMemory(const Channel& channel, void* memory, std::size_t bytes)
      : communicator_(channel.communicator()), context_(channel.bench().context()) {
    const auto& function = communicator_->api().register_memory;
    const cuda::Current current(*context_);
    communicator_->finish(function.symbol(),
                          function(communicator_->handle(), memory, bytes, &handle_),
                          "registering the fusion buffer of " + std::to_string(bytes) + " bytes",
                          NonBlockingCommunicator::Clock::now() + kPatience);
  }

  ~KnownMemory() override {
    // The end of a communicator is that of its registrations.
    if (!communicator_->is_open()) return;
    const auto& function = communicator_->api().deregister_memory;
    try {
      const cuda::Current current(*context_);
      communicator_->finish(function.symbol(), function(communicator_->handle(), handle_),
                            "deregistering the fusion buffer",
                            NonBlockingCommunicator::Clock::now() + kPatience);
    } catch (const std::exception&) {
      context_->note_lost();
    }
  }

 private:
  const std::shared_ptr<NonBlockingCommunicator> communicator_;
  const std::shared_ptr<const cuda::DeviceContext> context_;
  void* handle_ = nullptr;
};

}  // namespace

void FusionMemory::allocate(const Channel& channel) {
  const std::shared_ptr<const NcclApi> api = channel.communicator()->shared_api();
  if (cache_ == nullptr || !api->can_allocate()) {
    begin_ = reinterpret_cast<std::byte*>(channel.bench().fusion());
    return;
  }
  const std::size_t bytes = channel.bench().fusion_bytes();
  const cuda::Current current(*channel.bench().context());
  channel.communicator()->check(api->allocate.symbol(), api->allocate(&memory_, bytes),
                                "allocating " + std::to_string(bytes) + " bytes on GPU " +
                                    std::to_string(channel.bench().context()->index()) +
                                    " for the fusion buffer");
  api_ = api;
  context_ = channel.bench().context();
  begin_ = static_cast<std::byte*>(memory_);
}

std::byte* FusionMemory::use(const Channel& channel) {
  if (begin_ == nullptr) allocate(channel);
  if (cache_ != nullptr && channel.communicator()->api().can_register()) {
    // The memory is that of this process and stays: what it is registered with tells it apart.
    const Communicator known_by = channel.communicator()->handle();
    const auto owner = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(known_by));
    const std::size_t bytes = channel.bench().fusion_bytes();
    const cuda::Region region{.owner = owner,
                              .base = reinterpret_cast<std::uint64_t>(begin_),
                              .bytes = bytes,
                              .identity = {}};
    registrations_[known_by] =
        cache_->get(region, [&] { return std::make_shared<KnownMemory>(channel, begin_, bytes); });
  }
  return begin_;
}

void FusionMemory::free() noexcept {
  registrations_.clear();
  if (memory_ == nullptr) return;
  context_->release(api_->free, std::exchange(memory_, nullptr));
}

}  // namespace ronde::nccl

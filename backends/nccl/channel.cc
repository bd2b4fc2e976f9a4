// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/channel.h"

namespace ronde::nccl {
namespace {

class WatchedEvent final : public DeviceEvent {
 public:
  WatchedEvent(std::shared_ptr<const DeviceEvent> event,
               std::shared_ptr<const NonBlockingCommunicator> communicator, std::string doing)
      : event_(std::move(event)),
        communicator_(std::move(communicator)),
        doing_(std::move(doing)) {}

  bool passed() const override {
    if (event_->passed()) return true;
    // Another operation may be on its way by now: that one's matter.
    static_cast<void>(communicator_->is_issued(doing_));
    return false;
  }

  void order(void* stream) const override { event_->order(stream); }

 private:
  const std::shared_ptr<const DeviceEvent> event_;
  const std::shared_ptr<const NonBlockingCommunicator> communicator_;
  const std::string doing_;
};

}  // namespace

CallGroup::CallGroup(const Channel& channel, std::string doing)
    : channel_(channel), doing_(std::move(doing)) {
  const NonBlockingCommunicator& communicator = *channel_.communicator();
  const auto& start = communicator.api().group_start;
  communicator.check(start.symbol(), start(), doing_);
}

CallGroup::~CallGroup() {
  // The thread's next calls are not to be part of it; what failed is being thrown.
  if (is_open_) static_cast<void>(channel_.communicator()->api().group_end());
}

void CallGroup::end() {
  is_open_ = false;
  const NonBlockingCommunicator& communicator = *channel_.communicator();
  const auto& end = communicator.api().group_end;
  const cuda::Current current(*channel_.bench().context());
  communicator.check(end.symbol(), end(), doing_);
}

std::shared_ptr<const DeviceEvent> watched(std::shared_ptr<const DeviceEvent> event,
                                           const Channel& channel, std::string doing) {
  return std::make_shared<WatchedEvent>(std::move(event), channel.communicator(), std::move(doing));
}

}  // namespace ronde::nccl

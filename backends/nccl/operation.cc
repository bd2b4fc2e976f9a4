// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/operation.h"

namespace ronde::nccl {
namespace {

class WatchedEvent final : public DeviceEvent {
 public:
  WatchedEvent(std::shared_ptr<const DeviceEvent> event,
               std::shared_ptr<const BlockingCommunicator> communicator, std::string doing)
      : event_(std::move(event)),
        communicator_(std::move(communicator)),
        doing_(std::move(doing)) {}

  bool passed() const override {
    if (event_->passed()) return true;
    communicator_->watch(doing_);
    return false;
  }

  void order(void* stream) const override { event_->order(stream); }

 private:
  const std::shared_ptr<const DeviceEvent> event_;
  const std::shared_ptr<const BlockingCommunicator> communicator_;
  const std::string doing_;
};

}  // namespace

void Work::run() {
  for (const auto& event : after_) event->order(channel_->stream->handle());
  issue();
  event_ = std::make_shared<WatchedEvent>(shared_->streams->mark(*channel_->stream),
                                          channel_->communicator, doing_);
}

}  // namespace ronde::nccl

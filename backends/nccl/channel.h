// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backends/cuda/workbench.h"
#include "backends/nccl/communicator.h"

namespace ronde::nccl {

/// A communicator, and the stream that its work is queued on.
///
/// Thread-safety: as NonBlockingCommunicator.
class Channel {
 public:
  Channel() = default;
  /// `bench`: its stream; outlives the channel.
  Channel(cuda::Workbench& bench, std::shared_ptr<NonBlockingCommunicator> communicator)
      : bench_(&bench), communicator_(std::move(communicator)) {}

  cuda::Workbench& bench() const noexcept { return *bench_; }
  const std::shared_ptr<NonBlockingCommunicator>& communicator() const noexcept {
    return communicator_;
  }

  /// Calls one of NCCL's functions that end with a communicator and a stream: those of this
  /// channel. Throws NcclError. What it queues is in the stream once the communicator says so
  /// (NonBlockingCommunicator::is_issued).
  template <typename... Arguments, typename... Given>
  void call(const std::string& doing, const vendor::Entry<Result, Arguments...>& function,
            Given... given) const {
    const cuda::Current current(*bench_->context());
    const Result result = function(given..., communicator_->handle(), bench_->stream().handle());
    communicator_->check(function.symbol(), result, doing);
  }

 private:
  cuda::Workbench* bench_ = nullptr;
  std::shared_ptr<NonBlockingCommunicator> communicator_;
};

/// What is called while it lives is issued together, by end().
///
/// Thread-safety: one thread, which makes its calls and no others meanwhile.
class CallGroup {
 public:
  CallGroup(const Channel& channel, std::string doing);
  /// Without end(): an exception passes.
  ~CallGroup();
  CallGroup(const CallGroup&) = delete;
  CallGroup& operator=(const CallGroup&) = delete;

  void end();

 private:
  const Channel& channel_;
  const std::string doing_;
  bool is_open_ = true;
};

/// The end of what was queued on a channel. While it has not passed, NCCL is asked whether
/// something has gone wrong: its kernels do not end then.
std::shared_ptr<const DeviceEvent> watched(std::shared_ptr<const DeviceEvent> event,
                                           const Channel& channel, std::string doing);

}  // namespace ronde::nccl

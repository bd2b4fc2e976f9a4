// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "backends/cuda/stream.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/issuing_thread.h"

namespace ronde::nccl {

/// A communicator, the stream that its work is queued on, and the thread that makes its calls.
///
/// Thread-safety: call(): that thread.
struct Channel {
  std::shared_ptr<IssuingThread> thread;
  std::shared_ptr<cuda::Stream> stream;
  std::shared_ptr<BlockingCommunicator> communicator;

  /// Calls one of NCCL's functions that end with a communicator and a stream: those of this
  /// channel. Blocks as they do. Throws NcclError.
  template <typename... Arguments, typename... Given>
  void call(const std::string& doing, const vendor::Entry<Result, Arguments...>& function,
            Given... given) const {
    const cuda::Current current(stream->context());
    const BlockingCommunicator::Use use(*communicator, doing);
    communicator->check(function.symbol(), function(given..., use.handle(), stream->handle()),
                        doing);
  }
  /// As BlockingCommunicator::close().
  void close() const {
    const cuda::Current current(stream->context());
    communicator->close();
  }
};

/// What is called while it lives is issued together, by end().
///
/// Thread-safety: the channel's thread, which makes its calls and no others meanwhile.
class CallGroup {
 public:
  CallGroup(const Channel& channel, const std::string& doing)
      : channel_(channel), doing_(doing), use_(*channel.communicator, doing) {
    const auto& start = channel_.communicator->api().group_start;
    channel_.communicator->check(start.symbol(), start(), doing_);
  }
  /// Without end(): an exception passes, and the thread's next calls are not to be part of it.
  ~CallGroup() {
    if (is_open_) static_cast<void>(channel_.communicator->api().group_end());
  }
  CallGroup(const CallGroup&) = delete;
  CallGroup& operator=(const CallGroup&) = delete;

  void end() {
    is_open_ = false;
    const auto& end = channel_.communicator->api().group_end;
    const cuda::Current current(channel_.stream->context());
    channel_.communicator->check(end.symbol(), end(), doing_);
  }

 private:
  const Channel& channel_;
  const std::string& doing_;
  const BlockingCommunicator::Use use_;
  bool is_open_ = true;
};

}  // namespace ronde::nccl

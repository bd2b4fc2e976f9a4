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
/// Thread-safety: the functions: that thread.
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
    communicator->call(doing, function, given..., use.handle(), stream->handle());
  }

  /// What `calls` makes, by call(), is issued together at its end.
  template <typename Calls>
  void call_together(const std::string& doing, const Calls& calls) const {
    const NcclApi& api = communicator->api();
    const BlockingCommunicator::Use use(*communicator, doing);
    communicator->call(doing, api.group_start);
    try {
      calls();
    } catch (...) {
      // The thread's next calls are not to be part of it.
      static_cast<void>(api.group_end());
      throw;
    }
    const cuda::Current current(stream->context());
    communicator->call(doing, api.group_end);
  }

  /// As BlockingCommunicator::close().
  void close() const {
    const cuda::Current current(stream->context());
    communicator->close();
  }
};

}  // namespace ronde::nccl

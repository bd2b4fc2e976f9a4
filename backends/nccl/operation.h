// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/base/chunk_layout.h"
#include "backends/gpu/kernels/moves.h"
#include "backends/nccl/channel.h"

namespace ronde::nccl {

using cuda::Moves;
using cuda::moves_in;
using cuda::moves_out;

/// Queues an operation on the channel's stream, in one go, on its communicator's thread. That
/// thread may outlive the operation and its backend, so this owns all but the tensors, for which
/// see DeviceStreams::drain().
///
/// Thread-safety: one thread at a time.
class Work {
 public:
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Queues it behind the events that its tensors depend on. Blocks as NCCL does.
  void run();
  /// The end of the operation, after run(). Until it has passed, it asks NCCL for errors, after
  /// which NCCL's kernels do not end.
  const std::shared_ptr<const DeviceEvent>& event() const noexcept { return event_; }

 protected:
  /// `doing`: for texts, as in "reducing 3 tensors".
  Work(std::shared_ptr<Channel> channel, const Placement& place, std::string doing)
      : channel_(std::move(channel)),
        after_(place.after.begin(), place.after.end()),
        doing_(std::move(doing)) {}

  virtual void issue() = 0;

  const BlockingCommunicator& communicator() const noexcept { return *channel_->communicator; }
  bool exact() const noexcept { return channel_->options.exact; }
  Counts& counts() const noexcept { return channel_->counts; }
  std::size_t size() const noexcept { return channel_->size; }
  std::size_t rank() const noexcept { return channel_->rank; }
  const NcclApi& api() const noexcept { return communicator().api(); }
  const std::string& doing() const noexcept { return doing_; }

  /// Calls a function of NCCL whose last parameters are a communicator and a stream. May block.
  /// Throws NcclError.
  template <typename... Arguments, typename... Given>
  void call(const vendor::Entry<Result, Arguments...>& function, Given... given) const {
    const cuda::Current current(*resources().context());
    communicator().call(doing_, function, given..., communicator().handle(doing_),
                        resources().stream().handle());
  }
  /// Issues the calls that `calls` makes by call() as one group.
  template <typename Calls>
  void call_together(const Calls& calls) const {
    communicator().call(doing_, api().group_start);
    try {
      calls();
    } catch (...) {
      // The thread's next calls must not be part of the group.
      static_cast<void>(api().group_end());
      throw;
    }
    const cuda::Current current(*resources().context());
    communicator().call(doing_, api().group_end);
  }

  cuda::GpuResources& resources() const noexcept { return channel_->resources; }
  std::size_t fusion_bytes() const noexcept { return resources().fusion_bytes(); }
  std::byte* fusion() const { return channel_->fusion(); }
  /// Memory of the same size that is not registered, for a rank without a tensor: NCCL chooses its
  /// kernel by whether a rank's buffers are registered, and all ranks must run the same one.
  std::byte* unregistered() const { return reinterpret_cast<std::byte*>(resources().fusion()); }
  void move(const Moves& moves, const cuda::KernelSet::How& how) const {
    resources().move(moves, how);
  }

 private:
  const std::shared_ptr<Channel> channel_;
  const std::vector<std::shared_ptr<const DeviceEvent>> after_;
  const std::string doing_;
  std::shared_ptr<const DeviceEvent> event_;
};

/// "7 elements of f32"
inline std::string elements_text(std::size_t count, DataType dtype) {
  return std::to_string(count) + " elements of " + std::string(to_string(dtype));
}

// The work of a Backend's calls (reductions.cc, movements.cc).
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const AllreduceCall& call);
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const ReducescatterCall& call);
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const BroadcastCall& call);
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const AllgatherCall& call);
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const AlltoallCall& call);
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const SendCall& call);
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const RecvCall& call);

}  // namespace ronde::nccl

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/base/chunk_layout.h"
#include "backends/gpu/kernels/moves.h"
#include "backends/nccl/communicators.h"

namespace ronde::nccl {

using cuda::Moves;
using cuda::moves_in;
using cuda::moves_out;

/// Queues an operation on a channel's stream, in one go, on the channel's thread. That thread may
/// outlive the operation and its backend, so this owns all but the tensors, for which see
/// DeviceStreams::drain().
///
/// Thread-safety: one thread at a time.
class Work {
 public:
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Queues it behind the events that its tensors depend on. Blocks as NCCL does.
  void run();
  const StreamChannel& channel() const noexcept { return *channel_; }
  /// The end of the operation, after run(). Until it has passed, it asks NCCL for errors, after
  /// which NCCL's kernels do not end.
  const std::shared_ptr<const DeviceEvent>& event() const noexcept { return event_; }

 protected:
  /// `doing`: for texts, as in "reducing 3 tensors". `peer`: the other rank of a message.
  Work(Communicators& communicators, const Placement& place, std::string doing,
       int peer = Communicators::kAllRanks)
      : shared_(communicators.shared()),
        channel_(communicators.next_channel(peer)),
        after_(place.after.begin(), place.after.end()),
        doing_(std::move(doing)) {}

  virtual void issue() = 0;

  const NcclOptions& options() const noexcept { return shared_->options; }
  Counts& counts() const noexcept { return shared_->counts; }
  std::size_t size() const noexcept { return shared_->size; }
  std::size_t rank() const noexcept { return shared_->rank; }
  const NcclApi& api() const noexcept { return channel_->communicator->api(); }
  const std::string& doing() const noexcept { return doing_; }

  /// As those of StreamChannel.
  template <typename... Arguments, typename... Given>
  void call(const vendor::Entry<Result, Arguments...>& function, Given... given) const {
    channel_->call(doing_, function, given...);
  }
  template <typename Calls>
  void call_together(const Calls& calls) const {
    channel_->call_together(doing_, calls);
  }

  // For collectives:
  cuda::GpuResources& resources() const noexcept { return *channel_->resources; }
  std::size_t fusion_bytes() const noexcept { return resources().fusion_bytes(); }
  std::byte* fusion() const { return channel_->fusion(); }
  /// Memory of the same size that is not registered, for a rank without a tensor: NCCL chooses its
  /// kernel by whether a rank's buffers are registered, and all ranks must run the same one.
  std::byte* unregistered() const { return reinterpret_cast<std::byte*>(resources().fusion()); }
  void move(const Moves& moves, const cuda::KernelSet::How& how) const {
    resources().move(moves, how);
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<StreamChannel> channel_;
  const std::vector<std::shared_ptr<const DeviceEvent>> after_;
  const std::string doing_;
  std::shared_ptr<const DeviceEvent> event_;
};

/// "7 elements of f32"
inline std::string elements_text(std::size_t count, DataType dtype) {
  return std::to_string(count) + " elements of " + std::string(to_string(dtype));
}

// The work of a Backend's calls (reductions.cc, movements.cc), once the ranks are connected.
std::shared_ptr<Work> make_work(Communicators& communicators, const AllreduceCall& call);
std::shared_ptr<Work> make_work(Communicators& communicators, const ReducescatterCall& call);
std::shared_ptr<Work> make_work(Communicators& communicators, const BroadcastCall& call);
std::shared_ptr<Work> make_work(Communicators& communicators, const AllgatherCall& call);
std::shared_ptr<Work> make_work(Communicators& communicators, const AlltoallCall& call);
std::shared_ptr<Work> make_work(Communicators& communicators, const SendCall& call);
std::shared_ptr<Work> make_work(Communicators& communicators, const RecvCall& call);

}  // namespace ronde::nccl

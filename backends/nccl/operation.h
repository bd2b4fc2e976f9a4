// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/moves.h"
#include "backends/gpu/chunk_layout.h"
#include "backends/nccl/links.h"

namespace ronde::nccl {

using cuda::Moves;
using cuda::moves_in;
using cuda::moves_out;

/// Queues an operation on a lane's stream, in one go, on the lane's thread. That thread may outlive
/// the operation and its backend, so this owns all but the tensors, for which see
/// DeviceStreams::settle().
///
/// Thread-safety: one thread at a time.
class Work {
 public:
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Queues it behind the events that its tensors depend on. Blocks as NCCL does.
  void run();
  const Lane& lane() const noexcept { return *lane_; }
  /// The end of the operation, after run(). Until it has passed, it asks NCCL for errors, after
  /// which NCCL's kernels do not end.
  const std::shared_ptr<const DeviceEvent>& event() const noexcept { return event_; }

 protected:
  /// `doing`: for texts, as in "reducing 3 tensors". `peer`: the other rank of a message.
  Work(Links& links, const Placement& place, std::string doing, int peer = Links::kAllRanks)
      : shared_(links.shared()),
        lane_(links.next_lane(peer)),
        after_(place.after.begin(), place.after.end()),
        doing_(std::move(doing)) {}

  virtual void issue() = 0;

  const NcclOptions& options() const noexcept { return shared_->options; }
  Counts& counts() const noexcept { return shared_->counts; }
  std::size_t size() const noexcept { return shared_->size; }
  std::size_t rank() const noexcept { return shared_->rank; }
  const NcclApi& api() const noexcept { return lane_->communicator->api(); }
  const std::string& doing() const noexcept { return doing_; }

  /// As those of Lane.
  template <typename... Arguments, typename... Given>
  void call(const vendor::Entry<Result, Arguments...>& function, Given... given) const {
    lane_->call(doing_, function, given...);
  }
  template <typename Calls>
  void call_together(const Calls& calls) const {
    lane_->call_together(doing_, calls);
  }

  // For collectives:
  cuda::Workbench& bench() const noexcept { return *lane_->bench; }
  std::size_t fusion_bytes() const noexcept { return bench().fusion_bytes(); }
  std::byte* fusion() const { return lane_->fusion(); }
  /// Memory of the same size that is not registered, for a rank without a tensor: NCCL chooses its
  /// kernel by whether a rank's buffers are registered, and all ranks must run the same one.
  std::byte* unregistered() const { return reinterpret_cast<std::byte*>(bench().fusion()); }
  void move(const Moves& moves, const cuda::KernelSet::How& how) const { bench().move(moves, how); }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Lane> lane_;
  const std::vector<std::shared_ptr<const DeviceEvent>> after_;
  const std::string doing_;
  std::shared_ptr<const DeviceEvent> event_;
};

/// "7 elements of f32"
inline std::string elements_text(std::size_t count, DataType dtype) {
  return std::to_string(count) + " elements of " + std::string(to_string(dtype));
}

// The work of a Backend's calls (reductions.cc, movements.cc), once the ranks are connected.
std::shared_ptr<Work> make_work(Links& links, const AllreduceCall& call);
std::shared_ptr<Work> make_work(Links& links, const ReducescatterCall& call);
std::shared_ptr<Work> make_work(Links& links, const BroadcastCall& call);
std::shared_ptr<Work> make_work(Links& links, const AllgatherCall& call);
std::shared_ptr<Work> make_work(Links& links, const AlltoallCall& call);
std::shared_ptr<Work> make_work(Links& links, const SendCall& call);
std::shared_ptr<Work> make_work(Links& links, const RecvCall& call);

}  // namespace ronde::nccl

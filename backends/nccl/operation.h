// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/addresses.h"
#include "backends/cuda/moves.h"
#include "backends/gpu/chunk_layout.h"
#include "backends/nccl/links.h"

namespace ronde::nccl {

using cuda::Moves;
using cuda::moves_in;
using cuda::moves_out;

/// What an operation queues on a channel's stream, all of it at once, on the channel's thread. That
/// thread may outlive the operation and its backend, so this owns all but the tensors, for which
/// see DeviceStreams::settle().
///
/// Thread-safety: one thread at a time.
class Work {
 public:
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Queues it, after all that the buffers wait for. Blocks as NCCL does.
  void run();
  const Channel& channel() const noexcept { return lane_->channel; }
  /// After run(): the end of it. While that has not passed, NCCL is asked whether something has
  /// gone wrong: its kernels do not end then.
  const std::shared_ptr<const DeviceEvent>& event() const noexcept { return event_; }

 protected:
  /// `doing`: for texts, as in "reducing 3 tensors". `peer`: of a message.
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
  const NcclApi& api() const noexcept { return channel().communicator->api(); }
  const std::string& doing() const noexcept { return doing_; }

  /// As those of Channel.
  /// @{
  template <typename... Arguments, typename... Given>
  void call(const vendor::Entry<Result, Arguments...>& function, Given... given) const {
    channel().call(doing_, function, given...);
  }
  template <typename Calls>
  void call_together(const Calls& calls) const {
    channel().call_together(doing_, calls);
  }
  /// @}

  /// Of collectives.
  /// @{
  cuda::Workbench& bench() const noexcept { return *lane_->bench; }
  std::size_t fusion_bytes() const noexcept { return bench().fusion_bytes(); }
  std::byte* fusion() const { return lane_->fusion(); }
  /// As much memory that NCCL does not know, for a rank that lacks memory where the others use
  /// their tensors: NCCL chooses its kernel by whether a rank's own buffers are registered, and all
  /// ranks have to run the same one.
  std::byte* unregistered() const { return reinterpret_cast<std::byte*>(bench().fusion()); }
  void move(const Moves& moves, const cuda::KernelSet::How& how) const { bench().move(moves, how); }
  /// @}

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

}  // namespace ronde::nccl

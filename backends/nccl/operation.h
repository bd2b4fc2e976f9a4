// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/gpu/kernels/moves.h"
#include "backends/nccl/channel.h"
#include "ronde/plugin/calls.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde::nccl {

using cuda::sum;

/// Queues an operation on the channel's stream, in one go, on its communicator's thread. That
/// thread may outlive the operation and its backend, so this owns all but the tensors, for which
/// see DeviceStreams::drain().
///
/// Thread-safety: one thread at a time.
class Work {
 public:
  /// `after`: the events that the tensors depend on. `doing`: for texts, as in "reducing 3
  /// tensors". `issue`: makes the calls.
  Work(std::shared_ptr<Channel> channel, DeviceEvents after, std::string doing,
       std::function<void(const Work& work)> issue)
      : channel_(std::move(channel)),
        after_(after.begin(), after.end()),
        doing_(std::move(doing)),
        issue_(std::move(issue)) {}

  /// Queues it behind the events. Blocks as NCCL does.
  void run();
  /// The end of the operation, after run(). Until it has passed, it asks NCCL for errors, after
  /// which NCCL's kernels do not end.
  const std::shared_ptr<const DeviceEvent>& event() const noexcept { return event_; }

  // What `issue` uses.

  Channel& channel() const noexcept { return *channel_; }
  const NcclApi& api() const noexcept { return channel_->communicator->api(); }
  cuda::GpuResources& resources() const noexcept { return channel_->resources; }
  Counts& counts() const noexcept { return channel_->counts; }
  std::size_t size() const noexcept { return channel_->size; }
  std::size_t rank() const noexcept { return channel_->rank; }

  /// Calls a function of NCCL whose last parameters are a communicator and a stream. May block.
  /// Throws NcclError.
  template <typename... Arguments, typename... Given>
  void call(const vendor::Entry<Result, Arguments...>& function, Given... given) const {
    const BlockingCommunicator& communicator = *channel_->communicator;
    communicator.call(doing_, function, given..., communicator.handle(doing_),
                      resources().stream().handle());
  }
  /// Issues the calls that `calls` makes by call() as one group.
  template <typename Calls>
  void call_together(const Calls& calls) const {
    channel_->communicator->call(doing_, api().group_start);
    try {
      calls();
    } catch (...) {
      // The thread's next calls must not be part of the group.
      static_cast<void>(api().group_end());
      throw;
    }
    channel_->communicator->call(doing_, api().group_end);
  }

  std::size_t fusion_bytes() const noexcept { return resources().fusion_bytes(); }
  std::byte* fusion() const { return static_cast<std::byte*>(channel_->fusion()); }
  /// Memory of the same size that is not registered, for a rank without a tensor: NCCL chooses its
  /// kernel by whether a rank's buffers are registered, and all ranks must run the same one.
  std::byte* unregistered() const {
    return static_cast<std::byte*>(cuda::writable(resources().fusion()));
  }

 private:
  const std::shared_ptr<Channel> channel_;
  const std::vector<std::shared_ptr<const DeviceEvent>> after_;
  const std::string doing_;
  const std::function<void(const Work& work)> issue_;
  std::shared_ptr<const DeviceEvent> event_;
};

// What a Backend's calls have NCCL do (reductions.cc, movements.cc).
void issue(const Work& work, const AllreduceCall& call);
void issue(const Work& work, const ReducescatterCall& call);
void issue(const Work& work, const BroadcastCall& call);
void issue(const Work& work, const AllgatherCall& call);
void issue(const Work& work, const AlltoallCall& call);
void issue(const Work& work, const SendCall& call);
void issue(const Work& work, const RecvCall& call);

/// A call with copies of its lists, as the caller's may be gone before it is issued.
template <typename Call>
struct OwnCall {
  explicit OwnCall(const Call& given) : call(given) {
    const auto own = [](auto& span, auto& copy) {
      copy.assign(span.begin(), span.end());
      span = copy;
    };
    call.place = {};
    if constexpr (requires { call.segments; }) own(call.segments, segments);
    if constexpr (requires { call.counts; }) own(call.counts, counts);
    if constexpr (requires { call.send_counts; }) own(call.send_counts, counts);
    if constexpr (requires { call.receive_counts; }) own(call.receive_counts, receive_counts);
  }
  OwnCall(const OwnCall&) = delete;
  OwnCall& operator=(const OwnCall&) = delete;

  Call call;
  std::vector<Segment> segments;
  std::vector<std::size_t> counts, receive_counts;
};

/// `verb`: for texts, as in "reducing".
template <typename Call>
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const Call& call,
                                const std::string& verb) {
  std::string tensors;
  std::size_t elements = 0;
  if constexpr (requires { call.segments; }) {
    tensors = std::to_string(call.segments.size()) + " tensor(s) of ";
    elements = total_elements(call.segments);
  }
  if constexpr (requires { call.counts; }) elements = sum(call.counts);
  if constexpr (requires { call.send_counts; }) elements = sum(call.send_counts);
  if constexpr (requires { call.count; }) elements = call.count;
  return std::make_shared<Work>(
      std::move(channel), call.place.after,
      verb + " " + tensors + std::to_string(elements) + " elements of " +
          std::string(to_string(call.dtype)),
      [own = std::make_shared<OwnCall<Call>>(call)](const Work& work) { issue(work, own->call); });
}

}  // namespace ronde::nccl

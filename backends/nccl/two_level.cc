// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/two_level.h"

#include <algorithm>

#include "backends/cuda/addresses.h"
#include "backends/nccl/chunk_moves.h"
#include "backends/nccl/reductions.h"

namespace ronde::nccl {
namespace {

constexpr std::size_t kAlignment = 16;  // bytes

/// Until steps have ended that wait for what NCCL has in its stream. NCCL is asked meanwhile
/// whether something has gone wrong, as its kernels do not end then; that is thrown.
class UntilEndedOrBroken : public device::Wait<UntilEndedOrBroken> {
 public:
  UntilEndedOrBroken(device::Steps& steps, const Channel& channel, const std::string& doing)
      : steps_(steps), channel_(channel), doing_(doing) {}
  bool holds() const {
    static_cast<void>(channel_.communicator()->is_issued(doing_));
    return steps_.poll();
  }
  std::uint64_t progress() const noexcept { return steps_.progress(); }

 private:
  device::Steps& steps_;
  const Channel& channel_;
  const std::string& doing_;
};

}  // namespace

TwoLevelAllreduce::TwoLevelAllreduce(Links& links, const AllreduceCall& call)
    : LaneOperation(links, text_of(call), &Lane::within_host),
      call_(call),
      host_ranks_(static_cast<std::size_t>(links.topology().local_size)),
      host_rank_(static_cast<std::size_t>(links.topology().local_rank)),
      plan_(plan_two_levels(call, call.divisor(links.size()), host_ranks_)),
      layout_(call_.segments, most_elements(), kAlignment / width()) {
  begin(run());
}

/// Of a chunk: so many that all shares of it fit.
std::size_t TwoLevelAllreduce::most_elements() const noexcept {
  // Those of the others, too, where the ranks combine them.
  const std::size_t bytes = plan().by_nccl ? 2 * fusion_bytes() : fusion_bytes();
  return most_of_share(bytes, host_ranks_, width()) * host_ranks_;
}

device::Steps TwoLevelAllreduce::run() {
  enter(call_.place);
  while (layout_.next()) {
    links().counts().bytes += layout_.extent() * width();
    ++links().counts().across_hosts;
    const std::size_t share = share_of(layout_.extent(), host_ranks_, width());
    shares_ = {.elements = share, .bytes = share * width()};
    Place place;
    if (is_direct()) {
      ++links().counts().direct_chunks;
      place = direct_place();
    } else {
      prepare_fusion();
      co_await device::until([&] { return is_issued(); });
      shares_ = lay_out(fusion(), share, host_ranks_, width());
      place = {.input = fusion(), .output = fusion(), .is_packed = true};
      move(moves_in(layout_.pieces(), fusion(), size_of(plan().from), width()),
           {.from = plan().from, .to = plan().travel, .scaling = plan().pack, .op = plan().op});
    }
    device::Steps reducing = reduce_within_host(place);
    co_await reducing;
    crossing_ = cross(place);
    co_await UntilEndedOrBroken(crossing_, channel(), doing());
    call(api().all_gather, static_cast<const void*>(own_share(place)), place.output, shares_.bytes,
         kUint8);
    co_await device::until([&] { return is_issued(); });
    if (place.is_packed) {
      move(moves_out(layout_.pieces(), fusion(), size_of(plan().from), width()),
           {.from = plan().travel, .to = plan().from});
    }
  }
  leave();
}

/// Into this rank's share of the output. What lies behind the last element is nobody's.
device::Steps TwoLevelAllreduce::reduce_within_host(Place place) {
  if (plan().by_nccl) {
    if (place.is_packed) ++links().counts().packed_chunks;
    call(api().reduce_scatter, place.input, own_share(place), shares_.elements,
         number_of(plan().travel).value(), number_of(plan().op));
  } else {
    ++links().counts().chunks_in_order;
    exchange_shares(channel(), shares_, host_rank_, host_ranks_, doing());
  }
  co_await device::until([&] { return is_issued(); });
  if (plan().by_nccl) co_return;
  reduce_in_order(bench(), shares_, host_rank_, host_ranks_, plan(), links().options().most_inputs);
}

device::Steps TwoLevelAllreduce::cross(Place place) {
  const std::size_t extent = layout_.extent();
  const std::size_t begin = std::min(host_rank_ * shares_.elements, extent);
  const std::size_t count = std::min(shares_.elements, extent - begin);
  return lane().crossing->between.reduce(cuda::address_of(own_share(place)), count,
                                         std::min(shares_.elements, extent), plan_.over_hosts);
}

bool TwoLevelAllreduce::is_direct() const {
  const std::span<const device::Piece> pieces = layout_.pieces();
  const bool is_even = shares_.elements * host_ranks_ == layout_.extent();
  return plan().by_nccl && plan().pack.is_identity() && is_even && pieces.size() == 1 &&
         pieces.front().segment->input != nullptr && pieces.front().segment->output != nullptr;
}

TwoLevelAllreduce::Place TwoLevelAllreduce::direct_place() const {
  const device::Piece& piece = layout_.pieces().front();
  const std::size_t offset = piece.offset * width();
  return {.input = static_cast<const std::byte*>(advanced(piece.segment->input, offset)),
          .output = static_cast<std::byte*>(advanced(piece.segment->output, offset)),
          .is_packed = false};
}

std::byte* TwoLevelAllreduce::own_share(const Place& place) const noexcept {
  return place.output + host_rank_ * shares_.bytes;
}

}  // namespace ronde::nccl

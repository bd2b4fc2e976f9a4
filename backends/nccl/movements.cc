// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/movements.h"

#include <algorithm>
#include <numeric>

#include "backends/cuda/rank_parts.h"
#include "ronde/segment_cursor.h"

namespace ronde::nccl {
namespace {

constexpr cuda::SegmentMover::How kBytes{.from = DataType::U8, .to = DataType::U8};

std::vector<std::size_t> owned(std::span<const std::size_t> counts) {
  return {counts.begin(), counts.end()};
}

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::string elements_text(std::size_t count, DataType dtype) {
  return std::to_string(count) + " elements of " + std::string(to_string(dtype));
}

/// The same moves of plain bytes, of elements of that width.
Moves as_bytes(Moves moves, std::size_t width) {
  for (cuda::SegmentMover::Move& move : moves) move.count *= width;
  return moves;
}

/// Of the two ranks of a message, the number of the peer.
int number_of(int peer, const Links& links) {
  return static_cast<int>(links.shared()->rank) < peer ? 1 : 0;
}

}  // namespace

Broadcast::Broadcast(Links& links, const BroadcastCall& call)
    : LaneWork(links, call.place,
               "broadcasting " + std::to_string(call.segments.size()) + " tensor(s) of " +
                   elements_text(total_elements(call.segments), call.dtype)),
      owned_(call),
      width_(size_of(call.dtype)),
      layout_(call_.segments, fusion_bytes() / width_, 16 / width_) {}

void Broadcast::issue() {
  while (layout_.next()) {
    counts().bytes += layout_.extent() * width_;
    if (layout_.pieces().size() == 1) {
      ++counts().direct_chunks;
      send_piece(layout_.pieces().front());
    } else {
      ++counts().packed_chunks;
      send_packed();
    }
  }
}

void Broadcast::send_piece(const device::Piece& piece) const {
  const Segment& segment = *piece.segment;
  const void* input = is_root() ? cuda::at(segment.input, piece.offset, width_) : nullptr;
  void* output = nullptr;
  if (segment.output != nullptr) {
    output = cuda::at(segment.output, piece.offset, width_);
  } else {
    output = is_root() ? const_cast<void*>(input) : unregistered();  // the root's stays
  }
  call(api().broadcast, is_root() ? input : output, output, piece.count * width_, kUint8,
       call_.root);
}

void Broadcast::send_packed() const {
  std::byte* const buffer = fusion();
  if (is_root()) move(as_bytes(moves_in(layout_.pieces(), buffer, width_, width_), width_), kBytes);
  call(api().broadcast, buffer, buffer, layout_.extent() * width_, kUint8, call_.root);
  move(as_bytes(moves_out(layout_.pieces(), buffer, width_, width_), width_), kBytes);
}

Allgather::Allgather(Links& links, const AllgatherCall& call)
    : LaneWork(links, call.place, "gathering " + elements_text(sum(call.counts), call.dtype)),
      input_(call.input),
      output_(call.output),
      counts_(owned(call.counts)),
      width_(size_of(call.dtype)) {}

void Allgather::issue() {
  counts().bytes += sum(counts_) * width_;
  ++counts().direct_chunks;
  const auto [shortest, longest] = std::minmax_element(counts_.begin(), counts_.end());
  const std::size_t most = fusion_bytes() / size() / width_;
  if (*shortest == *longest && *longest > 0 && *longest <= most) {
    void* const output = output_ != nullptr ? output_ : unregistered();
    return call(api().all_gather, input_, output, *longest * width_, kUint8);
  }
  for (std::size_t done = 0; done < *longest; done += most) gather_chunk(done, most);
}

void Allgather::gather_chunk(std::size_t done, std::size_t most) const {
  const cuda::RankParts parts{.counts = counts_, .done = done, .each = most};
  call_together([&] {
    parts.for_each([&](std::size_t from, std::size_t element) {
      void* const output = output_ != nullptr ? cuda::at(output_, element, width_)
                                              : cuda::at(unregistered(), from * most, width_);
      const void* const input = from == rank() ? cuda::at(input_, done, width_) : output;
      call(api().broadcast, input, output, parts.piece(from) * width_, kUint8,
           static_cast<int>(from));
    });
  });
}

Alltoall::Alltoall(Links& links, const AlltoallCall& call)
    : LaneWork(links, call.place, "exchanging " + elements_text(sum(call.send_counts), call.dtype)),
      input_(call.input),
      output_(call.output),
      send_counts_(owned(call.send_counts)),
      receive_counts_(owned(call.receive_counts)),
      largest_count_(call.largest_count),
      width_(size_of(call.dtype)) {}

void Alltoall::issue() {
  counts().bytes += sum(send_counts_) * width_;
  ++counts().direct_chunks;
  const std::size_t most = fusion_bytes() / size() / width_;
  keep_own_part();
  for (std::size_t done = 0; done < largest_count_; done += most) exchange_chunk(done, most);
}

void Alltoall::keep_own_part() const {
  const std::size_t bytes = send_counts_[rank()] * width_;
  if (bytes == 0 || output_ == nullptr) return;
  const std::size_t sent = sum(std::span(send_counts_).first(rank()));
  const std::size_t received = sum(std::span(receive_counts_).first(rank()));
  move({{cuda::at(input_, sent, width_), cuda::at(output_, received, width_), bytes}}, kBytes);
}

void Alltoall::exchange_chunk(std::size_t done, std::size_t most) const {
  const cuda::RankParts sent{.counts = send_counts_, .done = done, .each = most};
  const cuda::RankParts received{.counts = receive_counts_, .done = done, .each = most};
  call_together([&] {
    sent.for_each([&](std::size_t to, std::size_t element) {
      if (to == rank()) return;
      call(api().send, cuda::at(input_, element, width_), sent.piece(to) * width_, kUint8,
           static_cast<int>(to));
    });
    received.for_each([&](std::size_t from, std::size_t element) {
      if (from == rank()) return;
      void* const output = output_ != nullptr ? cuda::at(output_, element, width_)
                                              : cuda::at(unregistered(), from * most, width_);
      call(api().recv, output, received.piece(from) * width_, kUint8, static_cast<int>(from));
    });
  });
}

Message::Message(Links& links, const SendCall& call)
    : Work(links, links.channel_to(call.peer), call.place,
           "sending " + elements_text(call.count, call.dtype)),
      input_(call.input),
      bytes_(call.count * size_of(call.dtype)),
      other_(number_of(call.peer, links)) {}

Message::Message(Links& links, const RecvCall& call)
    : Work(links, links.channel_to(call.peer), call.place,
           "receiving " + elements_text(call.count, call.dtype)),
      output_(call.output),
      bytes_(call.count * size_of(call.dtype)),
      other_(number_of(call.peer, links)) {}

void Message::issue() {
  if (output_ != nullptr) return call(api().recv, output_, bytes_, kUint8, other_);
  counts().bytes += bytes_;
  call(api().send, input_, bytes_, kUint8, other_);
}

}  // namespace ronde::nccl

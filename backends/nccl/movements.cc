// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/movements.h"

#include <algorithm>
#include <numeric>

#include "ronde/segment_cursor.h"

namespace ronde::nccl {
namespace {

using cuda::SegmentMover;

constexpr SegmentMover::How kBytes{.from = DataType::U8, .to = DataType::U8};

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// How much of a part of `count` is in the chunk that begins at `done`.
std::size_t piece_of(std::size_t count, std::size_t done, std::size_t most) {
  return count > done ? std::min(count - done, most) : 0;
}

std::string elements_text(std::size_t count, DataType dtype) {
  return std::to_string(count) + " elements of " + std::string(to_string(dtype));
}

}  // namespace

Broadcast::Broadcast(Links& links, const BroadcastCall& call)
    : LaneOperation(links, "broadcasting " + std::to_string(call.segments.size()) +
                               " tensor(s) of " +
                               elements_text(total_elements(call.segments), call.dtype)),
      call_(call),
      width_(size_of(call.dtype)),
      layout_(call_.segments, fusion_bytes() / width_, 16 / width_) {
  begin(run());
}

device::Steps Broadcast::run() {
  enter(call_.place);
  while (layout_.next()) {
    links().counts().bytes += layout_.extent() * width_;
    if (needs_fusion()) {
      prepare_fusion();
      co_await device::until([&] { return is_issued(); });
    }
    start_chunk();
    co_await device::until([&] { return is_issued(); });
    if (layout_.pieces().size() > 1) unpack_chunk();
  }
  leave();
}

bool Broadcast::needs_fusion() const {
  const bool is_single = layout_.pieces().size() == 1;
  const Segment& first = *layout_.pieces().front().segment;
  return !is_single || (first.output == nullptr && !is_root());
}

void Broadcast::start_chunk() {
  const device::Piece& first = layout_.pieces().front();
  const std::size_t offset = first.offset * width_;
  const std::size_t bytes = layout_.extent() * width_;
  if (layout_.pieces().size() > 1) {
    ++links().counts().packed_chunks;
    if (is_root()) pack_chunk();
    return call(api().broadcast, fusion(), fusion(), bytes, kUint8, call_.root);
  }
  ++links().counts().direct_chunks;
  const void* const input = is_root() ? advanced(first.segment->input, offset) : nullptr;
  void* output = fusion();
  if (first.segment->output != nullptr) {
    output = advanced(first.segment->output, offset);
  } else if (is_root()) {
    output = const_cast<void*>(input);  // in place, which leaves it as it is
  }
  call(api().broadcast, is_root() ? input : output, output, bytes, kUint8, call_.root);
}

void Broadcast::pack_chunk() const {
  std::vector<SegmentMover::Move> moves;
  for (const device::Piece& piece : layout_.pieces()) {
    moves.push_back({advanced(piece.segment->input, piece.offset * width_),
                     fusion() + piece.position * width_, piece.count * width_});
  }
  move(moves, kBytes);
}

void Broadcast::unpack_chunk() const {
  std::vector<SegmentMover::Move> moves;
  for (const device::Piece& piece : layout_.pieces()) {
    const Segment& segment = *piece.segment;
    const bool has_it = is_root() && segment.input == segment.output;
    if (segment.output == nullptr || has_it) continue;
    moves.push_back({fusion() + piece.position * width_,
                     advanced(segment.output, piece.offset * width_), piece.count * width_});
  }
  move(moves, kBytes);
}

Allgather::Allgather(Links& links, const AllgatherCall& call)
    : LaneOperation(links, "gathering " + elements_text(sum(call.counts), call.dtype)),
      call_(call),
      width_(size_of(call.dtype)),
      longest_(*std::max_element(call.counts.begin(), call.counts.end())),
      begin_(begins_of(call.counts)) {
  begin(run());
}

device::Steps Allgather::run() {
  enter(call_.place);
  links().counts().bytes += sum(call_.counts) * width_;
  ++links().counts().direct_chunks;
  const bool is_even = std::all_of(call_.counts.begin(), call_.counts.end(),
                                   [&](std::size_t count) { return count == longest_; });
  const std::size_t most = fusion_bytes() / size() / width_;
  if (call_.output == nullptr) {
    prepare_fusion();
    co_await device::until([&] { return is_issued(); });
  }
  if (is_even && longest_ > 0 && longest_ <= most) {
    void* const output = call_.output != nullptr ? call_.output : fusion();
    call(api().all_gather, call_.input, output, longest_ * width_, kUint8);
    co_await device::until([&] { return is_issued(); });
  } else {
    for (std::size_t done = 0; done < longest_; done += most) {
      gather_chunk(done, most);
      co_await device::until([&] { return is_issued(); });
    }
  }
  leave();
}

void Allgather::gather_chunk(std::size_t done, std::size_t most) const {
  CallGroup group(channel(), doing());
  for (std::size_t from = 0; from < size(); ++from) {
    const std::size_t count = piece_of(call_.counts[from], done, most);
    if (count == 0) continue;
    void* const output = call_.output != nullptr
                             ? advanced(call_.output, (begin_[from] + done) * width_)
                             : fusion() + from * most * width_;
    const void* const input = from == rank() ? advanced(call_.input, done * width_) : output;
    call(api().broadcast, input, output, count * width_, kUint8, static_cast<int>(from));
  }
  group.end();
}

Alltoall::Alltoall(Links& links, const AlltoallCall& call)
    : LaneOperation(links, "exchanging " + elements_text(sum(call.send_counts), call.dtype)),
      call_(call),
      width_(size_of(call.dtype)),
      send_begin_(begins_of(call.send_counts)),
      receive_begin_(begins_of(call.receive_counts)) {
  begin(run());
}

device::Steps Alltoall::run() {
  enter(call_.place);
  links().counts().bytes += sum(call_.send_counts) * width_;
  ++links().counts().direct_chunks;
  const std::size_t most = fusion_bytes() / size() / width_;
  if (call_.output == nullptr) {
    prepare_fusion();
    co_await device::until([&] { return is_issued(); });
  }
  keep_own_part();
  for (std::size_t done = 0; done < call_.largest_count; done += most) {
    exchange_chunk(done, most);
    co_await device::until([&] { return is_issued(); });
  }
  leave();
}

void Alltoall::keep_own_part() const {
  const std::size_t bytes = call_.send_counts[rank()] * width_;
  if (bytes == 0 || call_.output == nullptr) return;
  const SegmentMover::Move own{advanced(call_.input, send_begin_[rank()] * width_),
                               advanced(call_.output, receive_begin_[rank()] * width_), bytes};
  move({&own, 1}, kBytes);
}

void Alltoall::exchange_chunk(std::size_t done, std::size_t most) const {
  CallGroup group(channel(), doing());
  for (std::size_t i = 1; i < size(); ++i) {
    // Each begins with another one.
    const std::size_t to = (rank() + i) % size();
    const std::size_t from = (rank() + size() - i) % size();
    if (const std::size_t count = piece_of(call_.send_counts[to], done, most); count > 0) {
      call(api().send, advanced(call_.input, (send_begin_[to] + done) * width_), count * width_,
           kUint8, static_cast<int>(to));
    }
    const std::size_t count = piece_of(call_.receive_counts[from], done, most);
    if (count == 0) continue;
    void* const output = call_.output != nullptr
                             ? advanced(call_.output, (receive_begin_[from] + done) * width_)
                             : fusion() + from * most * width_;
    call(api().recv, output, count * width_, kUint8, static_cast<int>(from));
  }
  group.end();
}

Message::Message(Links& links, const SendCall& call)
    : ChannelOperation(links, links.channel_to(call.peer),
                       "sending " + elements_text(call.count, call.dtype)),
      place_(call.place),
      input_(call.input),
      bytes_(call.count * size_of(call.dtype)),
      other_(static_cast<int>(links.rank()) < call.peer ? 1 : 0) {
  begin(run());
}

Message::Message(Links& links, const RecvCall& call)
    : ChannelOperation(links, links.channel_to(call.peer),
                       "receiving " + elements_text(call.count, call.dtype)),
      place_(call.place),
      output_(call.output),
      bytes_(call.count * size_of(call.dtype)),
      other_(static_cast<int>(links.rank()) < call.peer ? 1 : 0) {
  begin(run());
}

device::Steps Message::run() {
  enter(place_);
  if (output_ == nullptr) {
    links().counts().bytes += bytes_;
    call(api().send, input_, bytes_, kUint8, other_);
  } else {
    call(api().recv, output_, bytes_, kUint8, other_);
  }
  co_await device::until([&] { return is_issued(); });
  leave();
}

}  // namespace ronde::nccl

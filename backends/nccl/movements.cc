// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/movements.h"

#include <algorithm>
#include <numeric>

#include "ronde/plugin/segment_cursor.h"

namespace ronde::nccl {
namespace {

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// The kernels would make other bytes of bools than 0 and 1 a 1.
DataType moved_as(DataType dtype) {
  return dtype == DataType::Bool ? DataType::U8 : dtype;
}

/// Of the two ranks of a message, the number of the peer.
int number_of(int peer, const Links& links) {
  return static_cast<int>(links.shared()->rank) < peer ? 1 : 0;
}

}  // namespace

Broadcast::Broadcast(Links& links, const BroadcastCall& call)
    : Work(links, call.place,
           "broadcasting " + std::to_string(call.segments.size()) + " tensor(s) of " +
               elements_text(total_elements(call.segments), call.dtype)),
      segments_(call.segments.begin(), call.segments.end()),
      root_(call.root),
      width_(size_of(call.dtype)),
      as_it_is_{.from = moved_as(call.dtype), .to = moved_as(call.dtype)},
      layout_(segments_, fusion_bytes() / width_, 16 / width_) {}

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

void Broadcast::send_piece(const gpu::Piece& piece) const {
  const Segment& segment = *piece.segment;
  const void* input = is_root() ? cuda::at(segment.input, piece.offset, width_) : nullptr;
  void* output = nullptr;
  if (segment.output != nullptr) {
    output = cuda::at(segment.output, piece.offset, width_);
  } else {
    output = is_root() ? const_cast<void*>(input) : unregistered();  // the root's stays
  }
  call(api().broadcast, is_root() ? input : output, output, piece.count * width_, kUint8, root_);
}

void Broadcast::send_packed() const {
  std::byte* const buffer = fusion();
  if (is_root()) {
    move(moves_in(layout_.pieces(), cuda::address_of(buffer), width_, width_), as_it_is_);
  }
  call(api().broadcast, buffer, buffer, layout_.extent() * width_, kUint8, root_);
  move(moves_out(layout_.pieces(), cuda::address_of(buffer), width_, width_), as_it_is_);
}

Allgather::Allgather(Links& links, const AllgatherCall& call)
    : GatheringWork(links, call.place, "gathering " + elements_text(sum(call.counts), call.dtype),
                    call.output, call.dtype),
      input_(call.input),
      counts_(call.counts.begin(), call.counts.end()) {}

void Allgather::issue() {
  counts().bytes += sum(counts_) * width_;
  ++counts().direct_chunks;
  const auto [shortest, longest] = std::minmax_element(counts_.begin(), counts_.end());
  if (*shortest == *longest && *longest > 0 && *longest <= most()) {
    return call(api().all_gather, input_, place_of(0, 0), *longest * width_, kUint8);
  }
  for (std::size_t done = 0; done < *longest; done += most()) {
    gather_chunk({counts_, done, most()});
  }
}

void Allgather::gather_chunk(const cuda::RankParts& parts) const {
  call_together([&] {
    parts.for_each([&](std::size_t from, std::size_t element) {
      void* const output = place_of(from, element);
      const void* const input = from == rank() ? cuda::at(input_, parts.done, width_) : output;
      call(api().broadcast, input, output, parts.piece(from) * width_, kUint8,
           static_cast<int>(from));
    });
  });
}

Alltoall::Alltoall(Links& links, const AlltoallCall& call)
    : GatheringWork(links, call.place,
                    "exchanging " + elements_text(sum(call.send_counts), call.dtype), call.output,
                    call.dtype),
      input_(call.input),
      send_counts_(call.send_counts.begin(), call.send_counts.end()),
      receive_counts_(call.receive_counts.begin(), call.receive_counts.end()),
      largest_count_(call.largest_count) {}

void Alltoall::issue() {
  counts().bytes += sum(send_counts_) * width_;
  ++counts().direct_chunks;
  keep_own_part();
  for (std::size_t done = 0; done < largest_count_; done += most()) {
    exchange_chunk({send_counts_, done, most()}, {receive_counts_, done, most()});
  }
}

void Alltoall::keep_own_part() const {
  const std::size_t count = send_counts_[rank()];
  if (count == 0 || output_ == nullptr) return;
  const std::size_t sent = sum(std::span(send_counts_).first(rank()));
  const std::size_t received = sum(std::span(receive_counts_).first(rank()));
  bench().stream().copy(cuda::address_of(cuda::at(output_, received, width_)),
                        cuda::address_of(cuda::at(input_, sent, width_)), count * width_, doing());
}

void Alltoall::exchange_chunk(const cuda::RankParts& sent, const cuda::RankParts& received) const {
  call_together([&] {
    sent.for_each([&](std::size_t to, std::size_t element) {
      if (to == rank()) return;
      call(api().send, cuda::at(input_, element, width_), sent.piece(to) * width_, kUint8,
           static_cast<int>(to));
    });
    received.for_each([&](std::size_t from, std::size_t element) {
      if (from == rank()) return;
      call(api().recv, place_of(from, element), received.piece(from) * width_, kUint8,
           static_cast<int>(from));
    });
  });
}

Message::Message(Links& links, const SendCall& call)
    : Work(links, call.place, "sending " + elements_text(call.count, call.dtype), call.peer),
      input_(call.input),
      bytes_(call.count * size_of(call.dtype)),
      other_(number_of(call.peer, links)) {}

Message::Message(Links& links, const RecvCall& call)
    : Work(links, call.place, "receiving " + elements_text(call.count, call.dtype), call.peer),
      output_(call.output),
      bytes_(call.count * size_of(call.dtype)),
      other_(number_of(call.peer, links)) {}

void Message::issue() {
  if (output_ != nullptr) return call(api().recv, output_, bytes_, kUint8, other_);
  counts().bytes += bytes_;
  call(api().send, input_, bytes_, kUint8, other_);
}

}  // namespace ronde::nccl

// SPDX-License-Identifier: Apache-2.0
// Operations that move bytes as they are. NCCL reads and writes the tensors themselves, in chunks
// of the fusion buffer's size: parts of all ranks that are equal by one call, others and several
// tensors by grouped calls. A rank without memory for a result has it written into the fusion
// buffer.
#include <algorithm>

#include "backends/nccl/operation.h"

namespace ronde::nccl {
namespace {

/// Parts of all ranks that arrive chunk by chunk.
struct Arrivals {
  void* output;  ///< null: there is no memory for it
  std::size_t width;
  std::size_t most;  ///< elements of a part in a chunk
  std::byte* instead;

  Arrivals(const Work& work, void* to, DataType dtype)
      : output(to),
        width(size_of(dtype)),
        most(work.fusion_bytes() / work.size() / width),
        instead(to == nullptr ? work.unregistered() : nullptr) {}

  /// Where a rank's part of a chunk goes, which begins with that element of the result.
  void* place_of(std::size_t from, std::size_t element) const {
    return output != nullptr ? cuda::at(output, element, width)
                             : cuda::at(instead, from * most, width);
  }
};

}  // namespace

void issue(const Work& work, const BroadcastCall& call) {
  const std::size_t width = size_of(call.dtype);
  const auto send = [&](const gpu::Piece& piece) {
    const Segment& segment = *piece.segment;
    const auto begin = [&](auto* memory) { return cuda::at(memory, piece.offset, width); };
    const bool is_root = static_cast<int>(work.rank()) == call.root;
    const void* input = is_root ? begin(segment.input) : nullptr;
    void* output = const_cast<void*>(input);  // the root's stays where it is
    if (segment.output != nullptr) output = begin(segment.output);
    if (output == nullptr) output = cuda::at(work.unregistered(), piece.position, width);
    work.call(work.api().broadcast, input != nullptr ? input : output, output, piece.count * width,
              kUint8, call.root);
  };
  gpu::ChunkLayout layout(call.segments, work.fusion_bytes() / width, 16 / width);
  while (layout.next()) {
    work.counts().bytes += layout.extent() * width;
    ++work.counts().direct_chunks;
    work.call_together([&] {
      for (const gpu::Piece& piece : layout.pieces()) send(piece);
    });
  }
}

/// Equal parts that are not too many go by one call; else each rank sends its own to all.
void issue(const Work& work, const AllgatherCall& call) {
  const Arrivals to(work, call.output, call.dtype);
  work.counts().bytes += sum(call.counts) * to.width;
  ++work.counts().direct_chunks;
  const auto [shortest, longest] = std::ranges::minmax(call.counts);
  if (shortest == longest && longest > 0 && longest <= to.most) {
    return work.call(work.api().all_gather, call.input, to.place_of(0, 0), longest * to.width,
                     kUint8);
  }
  for (std::size_t done = 0; done < longest; done += to.most) {
    const cuda::RankParts parts{call.counts, done, to.most};
    work.call_together([&] {
      parts.for_each([&](std::size_t from, std::size_t element) {
        void* const output = to.place_of(from, element);
        const void* const input =
            from == work.rank() ? cuda::at(call.input, done, to.width) : output;
        work.call(work.api().broadcast, input, output, parts.piece(from) * to.width, kUint8,
                  static_cast<int>(from));
      });
    });
  }
}

/// A rank also sends its own part.
void issue(const Work& work, const AlltoallCall& call) {
  const Arrivals to(work, call.output, call.dtype);
  work.counts().bytes += sum(call.send_counts) * to.width;
  ++work.counts().direct_chunks;
  for (std::size_t done = 0; done < call.largest_count; done += to.most) {
    const cuda::RankParts sent{call.send_counts, done, to.most};
    const cuda::RankParts received{call.receive_counts, done, to.most};
    work.call_together([&] {
      sent.for_each([&](std::size_t rank, std::size_t element) {
        work.call(work.api().send, cuda::at(call.input, element, to.width),
                  sent.piece(rank) * to.width, kUint8, static_cast<int>(rank));
      });
      received.for_each([&](std::size_t from, std::size_t element) {
        work.call(work.api().recv, to.place_of(from, element), received.piece(from) * to.width,
                  kUint8, static_cast<int>(from));
      });
    });
  }
}

// NCCL needs the calls of two ranks in the same order on both: operations start in the agreed
// order, in which each message has one place on its two ranks (Note [Matching of messages]).

void issue(const Work& work, const SendCall& call) {
  const std::size_t bytes = call.count * size_of(call.dtype);
  work.counts().bytes += bytes;
  work.call(work.api().send, call.input, bytes, kUint8, call.peer);
}

void issue(const Work& work, const RecvCall& call) {
  work.call(work.api().recv, call.output, call.count * size_of(call.dtype), kUint8, call.peer);
}

}  // namespace ronde::nccl

// SPDX-License-Identifier: Apache-2.0
// Operations that move bytes as they are. NCCL reads and writes the tensors themselves, in chunks
// of the fusion buffer's size: parts of all ranks that are equal by one call, others and several
// tensors by grouped calls.
#include <algorithm>
#include <numeric>

#include "backends/nccl/operation.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde::nccl {
namespace {

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// Bytes from the root to all.
class Broadcast final : public Work {
 public:
  Broadcast(std::shared_ptr<Channel> channel, const BroadcastCall& call)
      : Work(std::move(channel), call.place,
             "broadcasting " + std::to_string(call.segments.size()) + " tensor(s) of " +
                 elements_text(total_elements(call.segments), call.dtype)),
        segments_(call.segments.begin(), call.segments.end()),
        root_(call.root),
        width_(size_of(call.dtype)),
        layout_(segments_, fusion_bytes() / width_, 16 / width_) {}

 private:
  void issue() override {
    while (layout_.next()) {
      counts().bytes += layout_.extent() * width_;
      ++counts().direct_chunks;
      call_together([&] {
        for (const gpu::Piece& piece : layout_.pieces()) send_piece(piece);
      });
    }
  }

  /// A rank without memory for it has it written to its place in the fusion buffer; the root's
  /// stays where it is.
  void send_piece(const gpu::Piece& piece) const {
    const Segment& segment = *piece.segment;
    const auto begin = [&](auto* memory) { return cuda::at(memory, piece.offset, width_); };
    const void* input = static_cast<int>(rank()) == root_ ? begin(segment.input) : nullptr;
    void* output = const_cast<void*>(input);
    if (segment.output != nullptr) output = begin(segment.output);
    if (output == nullptr) output = cuda::at(unregistered(), piece.position, width_);
    call(api().broadcast, input != nullptr ? input : output, output, piece.count * width_, kUint8,
         root_);
  }

  const std::vector<Segment> segments_;
  const int root_;
  const std::size_t width_;
  gpu::ChunkLayout layout_;
};

/// What the next two have in common: parts of all ranks.
class GatheringWork : public Work {
 protected:
  GatheringWork(std::shared_ptr<Channel> channel, const Placement& place, std::string doing,
                void* output, DataType dtype)
      : Work(std::move(channel), place, std::move(doing)),
        output_(output),
        width_(size_of(dtype)) {}

  /// Elements of a part in a chunk, at most.
  std::size_t most() const noexcept { return fusion_bytes() / size() / width_; }
  /// Where a rank's part of a chunk goes, which begins with that element of the result. A rank
  /// without memory for that has it written into the fusion buffer.
  void* place_of(std::size_t from, std::size_t element) const {
    return output_ != nullptr ? cuda::at(output_, element, width_)
                              : cuda::at(unregistered(), from * most(), width_);
  }

  void* const output_;  ///< null: there is no memory for it
  const std::size_t width_;
};

/// Equal parts that are not too many go by one call; else each rank sends its own to all, chunk by
/// chunk.
class Allgather final : public GatheringWork {
 public:
  Allgather(std::shared_ptr<Channel> channel, const AllgatherCall& call)
      : GatheringWork(std::move(channel), call.place,
                      "gathering " + elements_text(sum(call.counts), call.dtype), call.output,
                      call.dtype),
        input_(call.input),
        counts_(call.counts.begin(), call.counts.end()) {}

 private:
  void issue() override {
    counts().bytes += sum(counts_) * width_;
    ++counts().direct_chunks;
    const auto [shortest, longest] = std::minmax_element(counts_.begin(), counts_.end());
    if (*shortest == *longest && *longest > 0 && *longest <= most()) {
      return call(api().all_gather, input_, place_of(0, 0), *longest * width_, kUint8);
    }
    for (std::size_t done = 0; done < *longest; done += most()) {
      const cuda::RankParts parts{counts_, done, most()};
      call_together([&] {
        parts.for_each([&](std::size_t from, std::size_t element) {
          void* const output = place_of(from, element);
          const void* const input = from == rank() ? cuda::at(input_, done, width_) : output;
          call(api().broadcast, input, output, parts.piece(from) * width_, kUint8,
               static_cast<int>(from));
        });
      });
    }
  }

  const void* const input_;
  const std::vector<std::size_t> counts_;
};

/// Chunk by chunk, as an uneven allgather. A rank also sends its own part.
class Alltoall final : public GatheringWork {
 public:
  Alltoall(std::shared_ptr<Channel> channel, const AlltoallCall& call)
      : GatheringWork(std::move(channel), call.place,
                      "exchanging " + elements_text(sum(call.send_counts), call.dtype), call.output,
                      call.dtype),
        input_(call.input),
        send_counts_(call.send_counts.begin(), call.send_counts.end()),
        receive_counts_(call.receive_counts.begin(), call.receive_counts.end()),
        largest_count_(call.largest_count) {}

 private:
  void issue() override {
    counts().bytes += sum(send_counts_) * width_;
    ++counts().direct_chunks;
    for (std::size_t done = 0; done < largest_count_; done += most()) {
      const cuda::RankParts sent{send_counts_, done, most()};
      const cuda::RankParts received{receive_counts_, done, most()};
      call_together([&] {
        sent.for_each([&](std::size_t to, std::size_t element) {
          call(api().send, cuda::at(input_, element, width_), sent.piece(to) * width_, kUint8,
               static_cast<int>(to));
        });
        received.for_each([&](std::size_t from, std::size_t element) {
          call(api().recv, place_of(from, element), received.piece(from) * width_, kUint8,
               static_cast<int>(from));
        });
      });
    }
  }

  const void* const input_;
  const std::vector<std::size_t> send_counts_;
  const std::vector<std::size_t> receive_counts_;
  const std::size_t largest_count_;
};

/// NCCL needs the calls of two ranks in the same order on both: operations start in the agreed
/// order, in which each message has one place on its two ranks (Note [Matching of messages]).
class Message final : public Work {
 public:
  /// One of `input` and `output` is null.
  template <typename Call>
  Message(std::shared_ptr<Channel> channel, const Call& call, const char* verb, const void* input,
          void* output)
      : Work(std::move(channel), call.place, verb + elements_text(call.count, call.dtype)),
        input_(input),
        output_(output),
        bytes_(call.count * size_of(call.dtype)),
        peer_(call.peer) {}

 private:
  void issue() override {
    if (output_ != nullptr) return call(api().recv, output_, bytes_, kUint8, peer_);
    counts().bytes += bytes_;
    call(api().send, input_, bytes_, kUint8, peer_);
  }

  const void* const input_;
  void* const output_;
  const std::size_t bytes_;
  const int peer_;
};

}  // namespace

std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const BroadcastCall& call) {
  return std::make_shared<Broadcast>(std::move(channel), call);
}
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const AllgatherCall& call) {
  return std::make_shared<Allgather>(std::move(channel), call);
}
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const AlltoallCall& call) {
  return std::make_shared<Alltoall>(std::move(channel), call);
}
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const SendCall& call) {
  return std::make_shared<Message>(std::move(channel), call, "sending ", call.input, nullptr);
}
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const RecvCall& call) {
  return std::make_shared<Message>(std::move(channel), call, "receiving ", nullptr, call.output);
}

}  // namespace ronde::nccl

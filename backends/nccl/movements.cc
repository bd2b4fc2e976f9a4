// SPDX-License-Identifier: Apache-2.0
// Operations that move bytes as they are. NCCL reads and writes the tensors themselves, in chunks
// of the fusion buffer's size: parts of all ranks that are equal by one call, others by grouped
// calls of each rank. Only a broadcast of several tensors packs a chunk of them into the fusion
// buffer.
#include <algorithm>
#include <numeric>

#include "backends/nccl/operation.h"
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
int number_of(int peer, const Communicators& communicators) {
  return static_cast<int>(communicators.shared()->rank) < peer ? 1 : 0;
}

/// Bytes from the root to all: a chunk that is a piece of a single tensor from where it is to where
/// it goes, others by way of the fusion buffer.
class Broadcast final : public Work {
 public:
  Broadcast(Communicators& communicators, const BroadcastCall& call)
      : Work(communicators, call.place,
             "broadcasting " + std::to_string(call.segments.size()) + " tensor(s) of " +
                 elements_text(total_elements(call.segments), call.dtype)),
        segments_(call.segments.begin(), call.segments.end()),
        root_(call.root),
        width_(size_of(call.dtype)),
        as_it_is_{.from = moved_as(call.dtype), .to = moved_as(call.dtype)},
        layout_(segments_, fusion_bytes() / width_, 16 / width_) {}

 private:
  void issue() override {
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

  bool is_root() const noexcept { return static_cast<int>(rank()) == root_; }

  void send_piece(const gpu::Piece& piece) const {
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

  void send_packed() const {
    std::byte* const buffer = fusion();
    if (is_root()) {
      move(moves_in(layout_.pieces(), cuda::address_of(buffer), width_, width_), as_it_is_);
    }
    call(api().broadcast, buffer, buffer, layout_.extent() * width_, kUint8, root_);
    move(moves_out(layout_.pieces(), cuda::address_of(buffer), width_, width_), as_it_is_);
  }

  const std::vector<Segment> segments_;
  const int root_;
  const std::size_t width_;
  const cuda::KernelSet::How as_it_is_;
  gpu::ChunkLayout layout_;
};

/// What the next two have in common: parts of all ranks.
class GatheringWork : public Work {
 protected:
  GatheringWork(Communicators& communicators, const Placement& place, std::string doing,
                void* output, DataType dtype)
      : Work(communicators, place, std::move(doing)), output_(output), width_(size_of(dtype)) {}

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
  Allgather(Communicators& communicators, const AllgatherCall& call)
      : GatheringWork(communicators, call.place,
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
      gather_chunk({counts_, done, most()});
    }
  }

  void gather_chunk(const cuda::RankParts& parts) const {
    call_together([&] {
      parts.for_each([&](std::size_t from, std::size_t element) {
        void* const output = place_of(from, element);
        const void* const input = from == rank() ? cuda::at(input_, parts.done, width_) : output;
        call(api().broadcast, input, output, parts.piece(from) * width_, kUint8,
             static_cast<int>(from));
      });
    });
  }

  const void* const input_;
  const std::vector<std::size_t> counts_;
};

/// Chunk by chunk, as an uneven allgather.
class Alltoall final : public GatheringWork {
 public:
  Alltoall(Communicators& communicators, const AlltoallCall& call)
      : GatheringWork(communicators, call.place,
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
    keep_own_part();
    for (std::size_t done = 0; done < largest_count_; done += most()) {
      exchange_chunk({send_counts_, done, most()}, {receive_counts_, done, most()});
    }
  }

  void keep_own_part() const {
    const std::size_t count = send_counts_[rank()];
    if (count == 0 || output_ == nullptr) return;
    const std::size_t sent = sum(std::span(send_counts_).first(rank()));
    const std::size_t received = sum(std::span(receive_counts_).first(rank()));
    resources().stream().copy(cuda::address_of(cuda::at(output_, received, width_)),
                              cuda::address_of(cuda::at(input_, sent, width_)), count * width_,
                              doing());
  }

  void exchange_chunk(const cuda::RankParts& sent, const cuda::RankParts& received) const {
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

  const void* const input_;
  const std::vector<std::size_t> send_counts_;
  const std::vector<std::size_t> receive_counts_;
  const std::size_t largest_count_;
};

/// Between two ranks, on a channel of theirs.
class Message final : public Work {
 public:
  Message(Communicators& communicators, const SendCall& call)
      : Work(communicators, call.place, "sending " + elements_text(call.count, call.dtype),
             call.peer),
        input_(call.input),
        bytes_(call.count * size_of(call.dtype)),
        other_(number_of(call.peer, communicators)) {}
  Message(Communicators& communicators, const RecvCall& call)
      : Work(communicators, call.place, "receiving " + elements_text(call.count, call.dtype),
             call.peer),
        output_(call.output),
        bytes_(call.count * size_of(call.dtype)),
        other_(number_of(call.peer, communicators)) {}

 private:
  void issue() override {
    if (output_ != nullptr) return call(api().recv, output_, bytes_, kUint8, other_);
    counts().bytes += bytes_;
    call(api().send, input_, bytes_, kUint8, other_);
  }

  const void* const input_ = nullptr;
  void* const output_ = nullptr;  ///< null: it is sent
  const std::size_t bytes_;
  const int other_;  ///< of the two
};

}  // namespace

std::shared_ptr<Work> make_work(Communicators& communicators, const BroadcastCall& call) {
  return std::make_shared<Broadcast>(communicators, call);
}
std::shared_ptr<Work> make_work(Communicators& communicators, const AllgatherCall& call) {
  return std::make_shared<Allgather>(communicators, call);
}
std::shared_ptr<Work> make_work(Communicators& communicators, const AlltoallCall& call) {
  return std::make_shared<Alltoall>(communicators, call);
}
std::shared_ptr<Work> make_work(Communicators& communicators, const SendCall& call) {
  return std::make_shared<Message>(communicators, call);
}
std::shared_ptr<Work> make_work(Communicators& communicators, const RecvCall& call) {
  return std::make_shared<Message>(communicators, call);
}

}  // namespace ronde::nccl

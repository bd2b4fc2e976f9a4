// SPDX-License-Identifier: Apache-2.0
// Operations through the fusion buffer, chunk by chunk: pack the next elements of the segments (or
// the next piece of every part) into a slot, let the wrapped backend work on it, and unpack.
#include "core/src/run/packing_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/src/kernels/elementwise.h"
#include "core/src/run/packing_streams.h"
#include "ronde/kernels.h"

namespace ronde {
namespace {

constexpr std::size_t kLargestElement = 8;  // bytes, of any dtype

/// Bytes of a rank's share of a chunk of an allreduce, broadcast or message. A chunk that stays in
/// the caches is packed, reduced and unpacked faster, and beyond this size a library gains nothing
/// from more (docs/performance.md).
constexpr std::size_t kShare = std::size_t{512} << 10;

/// Elements of a reduction, behind the first `offset` of `input`, which may be null.
template <typename Call>
void pack_input(std::byte* to, const void* input, std::size_t offset, std::size_t count,
                const Call& call, bool widen) {
  if (input == nullptr) return fill_neutral(to, count, call.dtype, call.op, widen);
  pack_elements(to, advanced(input, offset * size_of(call.dtype)), count, call.dtype,
                {call.prescale, 1.0}, widen);
}

}  // namespace

class PackingBackend::Allreduce final : public SegmentStream {
 public:
  Allreduce(PackingBackend& owner, const AllreduceCall& call)
      : SegmentStream(owner, call.segments, size_of(owner.wire(call.dtype))),
        call_(call),
        widen_(owner.packed_capabilities_.widen_halves) {}

 private:
  bool reads() const override { return true; }

  void pack(std::byte* to, const Segment& segment, std::size_t offset, std::size_t count) override {
    pack_input(to, segment.input, offset, count, call_, widen_);
  }

  void unpack(const std::byte* from, const Segment& segment, std::size_t offset,
              std::size_t count) override {
    unpack_elements(advanced(segment.output, offset * size_of(call_.dtype)), from, count,
                    call_.dtype, call_.final, widen_);
  }

  std::unique_ptr<Operation> launch(Slot& chunk) override {
    chunk.segment = {chunk.memory, chunk.memory, chunk.count};
    return owner_.packed_->allreduce(
        {.segments = {&chunk.segment, 1}, .dtype = owner_.wire(call_.dtype), .op = call_.op});
  }

  const AllreduceCall call_;
  const bool widen_;
};

class PackingBackend::Broadcast final : public SegmentStream {
 public:
  Broadcast(PackingBackend& owner, const BroadcastCall& call)
      : SegmentStream(owner, call.segments, size_of(call.dtype)),
        call_(call),
        width_(size_of(call.dtype)),
        is_root_(call.root == owner.rank_) {}

 private:
  bool reads() const override { return is_root_; }

  void pack(std::byte* to, const Segment& segment, std::size_t offset, std::size_t count) override {
    std::memcpy(to, advanced(segment.input, offset * width_), count * width_);
  }

  void unpack(const std::byte* from, const Segment& segment, std::size_t offset,
              std::size_t count) override {
    if (is_root_ && segment.input == segment.output) return;
    std::memcpy(advanced(segment.output, offset * width_), from, count * width_);
  }

  std::unique_ptr<Operation> launch(Slot& chunk) override {
    chunk.segment = {chunk.memory, chunk.memory, chunk.count * width_};
    return owner_.packed_->broadcast(
        {.segments = {&chunk.segment, 1}, .dtype = DataType::U8, .root = call_.root});
  }

  const BroadcastCall call_;
  const std::size_t width_;
  const bool is_root_;
};

/// A chunk takes a piece of every part, at most the same number of units each, so that all ranks
/// need equally many chunks. The slot holds the pieces of the input, and behind them those of the
/// output.
class PackingBackend::PartStream : public ChunkedOperation {
 public:
  /// `most`: units of the largest part, of all ranks. `width`: bytes of a unit in the buffer.
  PartStream(PackingBackend& owner, Parts in, Parts out, std::size_t most, std::size_t width)
      : ChunkedOperation(owner, most, each(owner, in.size() + out.size(), width)),
        in_(std::move(in)),
        out_(std::move(out)),
        width_(width) {}

 protected:
  /// `offset` and `count` in units of the whole input or output.
  virtual void pack(std::byte* to, std::size_t offset, std::size_t count) = 0;
  virtual void unpack(const std::byte* from, std::size_t offset, std::size_t count) = 0;
  /// `chunk`: its count is that of the largest piece, of all ranks.
  virtual std::unique_ptr<Operation> launch(const Slot& chunk, const std::byte* input,
                                            std::byte* output) = 0;

 private:
  /// Units of one part in a chunk.
  static std::size_t each(const PackingBackend& owner, std::size_t parts, std::size_t width) {
    return std::max<std::size_t>(owner.slot_bytes_ / (parts * width), 1);
  }

  std::unique_ptr<Operation> start_chunk(Slot& chunk) final {
    const std::size_t in_total = cut(in_, chunk, chunk.in_pieces);
    const std::size_t out_total = cut(out_, chunk, chunk.out_pieces);
    std::byte* position = reserve(chunk, (in_total + out_total) * width_);
    for (std::size_t part = 0; part < in_.size(); ++part) {
      const auto [offset, count] = in_.piece(part, chunk.offset, chunk.count);
      if (count > 0) pack(position, offset, count);
      position += count * width_;
    }
    owner_.counters_.packed_bytes.add(in_total * width_);
    return launch(chunk, chunk.memory, position);
  }

  void end_chunk(const Slot& chunk) final {
    const std::byte* position = chunk.memory + width_ * sum(chunk.in_pieces);
    for (std::size_t part = 0; part < out_.size(); ++part) {
      const auto [offset, count] = out_.piece(part, chunk.offset, chunk.count);
      if (count > 0) unpack(position, offset, count);
      position += count * width_;
      owner_.counters_.unpacked_bytes.add(count * width_);
    }
  }

  /// Units of every part in this chunk; returns their sum.
  static std::size_t cut(const Parts& parts, const Slot& chunk, std::vector<std::size_t>& pieces) {
    pieces.resize(parts.size());
    for (std::size_t part = 0; part < parts.size(); ++part) {
      pieces[part] = parts.piece(part, chunk.offset, chunk.count).count;
    }
    return sum(pieces);
  }

  static std::size_t sum(const std::vector<std::size_t>& pieces) {
    return std::accumulate(pieces.begin(), pieces.end(), std::size_t{0});
  }

  const Parts in_;
  const Parts out_;
  const std::size_t width_;
};

/// Plain bytes from one memory to another.
class PackingBackend::ByteStream : public PartStream {
 public:
  /// `most`: elements of the largest part, of all ranks.
  ByteStream(PackingBackend& owner, const void* input, std::span<const std::size_t> in_counts,
             void* output, std::span<const std::size_t> out_counts, std::size_t most,
             DataType dtype)
      : PartStream(owner, Parts(in_counts, size_of(dtype)), Parts(out_counts, size_of(dtype)),
                   most * size_of(dtype), 1),
        from_(input),
        to_(output) {}

 private:
  void pack(std::byte* to, std::size_t offset, std::size_t count) final {
    std::memcpy(to, advanced(from_, offset), count);
  }
  void unpack(const std::byte* from, std::size_t offset, std::size_t count) final {
    if (to_ != nullptr) std::memcpy(advanced(to_, offset), from, count);
  }

  const void* const from_;
  void* const to_;
};

class PackingBackend::Allgather final : public ByteStream {
 public:
  Allgather(PackingBackend& owner, const AllgatherCall& call)
      : ByteStream(owner, call.input, call.counts.subspan(owner.own(), 1), call.output, call.counts,
                   Parts(call.counts, 1).largest(), call.dtype) {}

 private:
  std::unique_ptr<Operation> launch(const Slot& chunk, const std::byte* input,
                                    std::byte* output) override {
    return owner_.packed_->allgather(
        {.input = input, .output = output, .counts = chunk.out_pieces, .dtype = DataType::U8});
  }
};

class PackingBackend::Alltoall final : public ByteStream {
 public:
  Alltoall(PackingBackend& owner, const AlltoallCall& call)
      : ByteStream(owner, call.input, call.send_counts, call.output, call.receive_counts,
                   call.largest_count, call.dtype) {}

 private:
  std::unique_ptr<Operation> launch(const Slot& chunk, const std::byte* input,
                                    std::byte* output) override {
    return owner_.packed_->alltoall({.input = input,
                                     .output = output,
                                     .send_counts = chunk.in_pieces,
                                     .receive_counts = chunk.out_pieces,
                                     .largest_count = chunk.count,
                                     .dtype = DataType::U8});
  }
};

class PackingBackend::Reducescatter final : public PartStream {
 public:
  Reducescatter(PackingBackend& owner, const ReducescatterCall& call)
      : PartStream(owner, Parts(call.counts, 1), Parts(call.counts.subspan(owner.own(), 1), 1),
                   Parts(call.counts, 1).largest(), size_of(owner.wire(call.dtype))),
        call_(call),
        widen_(owner.packed_capabilities_.widen_halves) {}

 private:
  void pack(std::byte* to, std::size_t offset, std::size_t count) override {
    pack_input(to, call_.input, offset, count, call_, widen_);
  }

  void unpack(const std::byte* from, std::size_t offset, std::size_t count) override {
    if (call_.output == nullptr) return;
    unpack_elements(advanced(call_.output, offset * size_of(call_.dtype)), from, count, call_.dtype,
                    call_.final, widen_);
  }

  std::unique_ptr<Operation> launch(const Slot& chunk, const std::byte* input,
                                    std::byte* output) override {
    return owner_.packed_->reducescatter({.input = input,
                                          .output = output,
                                          .counts = chunk.in_pieces,
                                          .dtype = owner_.wire(call_.dtype),
                                          .op = call_.op});
  }

  const ReducescatterCall call_;
  const bool widen_;
};

/// Plain bytes to one rank, or from it.
class PackingBackend::Message final : public ChunkedOperation {
 public:
  Message(PackingBackend& owner, const SendCall& call)
      : Message(owner, call.input, nullptr, call.count * size_of(call.dtype), call.peer) {}
  Message(PackingBackend& owner, const RecvCall& call)
      : Message(owner, nullptr, call.output, call.count * size_of(call.dtype), call.peer) {}

 private:
  Message(PackingBackend& owner, const void* from, void* to, std::size_t bytes, int peer)
      : ChunkedOperation(owner, bytes, std::min(owner.slot_bytes_, 2 * kShare)),
        from_(from),
        to_(to),
        peer_(peer) {}

  std::unique_ptr<Operation> start_chunk(Slot& chunk) override {
    const std::size_t count = chunk.count;
    std::byte* const memory = reserve(chunk, count);
    if (from_ == nullptr) {
      return owner_.packed_->recv(
          {.output = memory, .count = count, .dtype = DataType::U8, .peer = peer_});
    }
    std::memcpy(memory, advanced(from_, chunk.offset), count);
    owner_.counters_.packed_bytes.add(count);
    return owner_.packed_->send(
        {.input = memory, .count = count, .dtype = DataType::U8, .peer = peer_});
  }

  void end_chunk(const Slot& chunk) override {
    if (from_ != nullptr) return;
    std::memcpy(advanced(to_, chunk.offset), chunk.memory, chunk.count);
    owner_.counters_.unpacked_bytes.add(chunk.count);
  }

  const void* const from_;  ///< null: it comes from the peer
  void* const to_;
  const int peer_;
};

namespace {

/// Whole cache lines, so that the last chunk of a full buffer is not one of a few bytes.
std::size_t share_of_slot(std::size_t buffer_bytes, std::size_t slots) {
  return slots == 1 ? buffer_bytes : rounded_up(buffer_bytes / slots, 64);
}

}  // namespace

PackingBackend::PackingBackend(std::unique_ptr<Backend> packed, int size, int rank,
                               std::size_t buffer_bytes)
    : packed_(std::move(packed)),
      packed_capabilities_(packed_->capabilities()),
      size_(size),
      rank_(rank),
      slot_count_(
          std::clamp<std::size_t>(packed_capabilities_.operations_in_flight, 1, kMostSlots)),
      // A PartStream has an element of every part in it, at least.
      slot_bytes_(std::max({share_of_slot(buffer_bytes, slot_count_), std::size_t{64},
                            kLargestElement * (static_cast<std::size_t>(size) + 1)})),
      chunk_bytes_(std::min(slot_bytes_, kShare * static_cast<std::size_t>(size))) {
  for (std::size_t i = 0; i < slot_count_; ++i) slots_.emplace_back(slot_bytes_);
}

PackingBackend::~PackingBackend() = default;

PackingBackend::Slot* PackingBackend::free_slot() noexcept {
  const auto found = std::ranges::find(slots_, false, &Slot::is_taken);
  return found == slots_.end() ? nullptr : &*found;
}

DataType PackingBackend::wire(DataType dtype) const {
  return packed_dtype(dtype, packed_capabilities_.widen_halves);
}

Capabilities PackingBackend::capabilities() const {
  Capabilities capabilities = packed_capabilities_;
  capabilities.wants_packed = false;
  capabilities.set_wire_dtypes();
  capabilities.operations_in_flight = slot_count_;
  return capabilities;
}

std::unique_ptr<Operation> PackingBackend::allreduce(const AllreduceCall& call) {
  if (call.wire_dtype) return compressed_allreduce(call);
  return std::make_unique<Allreduce>(*this, call);
}

std::unique_ptr<Operation> PackingBackend::broadcast(const BroadcastCall& call) {
  return std::make_unique<Broadcast>(*this, call);
}

std::unique_ptr<Operation> PackingBackend::allgather(const AllgatherCall& call) {
  return std::make_unique<Allgather>(*this, call);
}

std::unique_ptr<Operation> PackingBackend::alltoall(const AlltoallCall& call) {
  return std::make_unique<Alltoall>(*this, call);
}

std::unique_ptr<Operation> PackingBackend::reducescatter(const ReducescatterCall& call) {
  return std::make_unique<Reducescatter>(*this, call);
}

std::unique_ptr<Operation> PackingBackend::send(const SendCall& call) {
  return std::make_unique<Message>(*this, call);
}

std::unique_ptr<Operation> PackingBackend::recv(const RecvCall& call) {
  return std::make_unique<Message>(*this, call);
}

void PackingBackend::abort() noexcept {
  packed_->abort();
  for (Slot& slot : slots_) slot.buffer.abandon();
}

void PackingBackend::close() {
  packed_->close();
}

StatsGroup PackingBackend::stats() const {
  StatsGroup group = packed_->stats();
  group.counters.emplace_back("chunks", counters_.chunks.get());
  group.counters.emplace_back("packed_bytes", counters_.packed_bytes.get());
  group.counters.emplace_back("unpacked_bytes", counters_.unpacked_bytes.get());
  group.counters.emplace_back("fusion_buffer_bytes", counters_.buffer_bytes.get());
  return group;
}

}  // namespace ronde

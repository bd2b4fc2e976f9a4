// SPDX-License-Identifier: Apache-2.0
// Operations through the fusion buffer, chunk by chunk: pack the next elements of the segments (or
// the next piece of every part) into a slot, let the wrapped backend work on it, and unpack.
#include "core/src/run/packing_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/src/base/monotonic_clock.h"
#include "core/src/kernels/elementwise.h"
#include "ronde/division.h"
#include "ronde/kernels.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde {
namespace {

constexpr std::size_t kLargestElement = 8;  // bytes, of any dtype

/// Bytes of a rank's share of a chunk of an allreduce, broadcast or message. A chunk that stays in
/// the caches is packed, reduced and unpacked faster, and beyond this size a library gains nothing
/// from more (docs/performance.md).
constexpr std::size_t kShare = std::size_t{512} << 10;

/// Adds the time of a scope to a total.
class Stopwatch {
 public:
  explicit Stopwatch(std::chrono::nanoseconds& total) : total_(total) {}
  ~Stopwatch() { total_ += MonotonicClock::now() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::chrono::nanoseconds& total_;
  const TimePoint begin_ = MonotonicClock::now();
};

/// Packs elements of a reduction, behind the first `offset` of `input`, which may be null.
void pack_input(std::byte* to, const void* input, std::size_t offset, std::size_t count,
                const Reduction& reduction, bool widen) {
  const DataType dtype = reduction.dtype;
  if (input == nullptr) return fill_neutral(to, count, dtype, reduction.op, widen);
  pack_elements(to, advanced(input, offset * size_of(dtype)), count, dtype,
                {reduction.prescale, 1.0}, widen);
}

/// Unpacks results, behind the first `offset` of `output`, which may be null.
void unpack_output(void* output, const std::byte* from, std::size_t offset, std::size_t count,
                   const Reduction& reduction, bool widen) {
  if (output == nullptr) return;
  unpack_elements(advanced(output, offset * size_of(reduction.dtype)), from, count, reduction.dtype,
                  reduction.final, widen);
}

}  // namespace

/// Runs chunks through the slots, as many at a time as there are slots for.
///
/// Note [Order of chunks]
/// The packed backend wants its operations started in one order on all ranks, whatever the timing.
/// So operations start their chunks one after the other: each starts all of its own, in their
/// order, before the next one starts any. An operation whose chunks take two operations of the
/// packed backend starts the second one when the first has ended, and so has one chunk in flight at
/// a time, and the next operation waits for its end. The oldest operation finds every slot free or
/// filled by itself sooner or later, on every rank: so all end.
class PackingBackend::ChunkedOperation : public Operation {
 public:
  /// A chunk has at most `each` of the `total` units. `most_in_flight`: number of chunks.
  ChunkedOperation(PackingBackend& owner, std::size_t total, std::size_t each,
                   std::size_t most_in_flight = kMostSlots)
      : owner_(owner), total_(total), each_(each), most_in_flight_(most_in_flight) {
    owner_.starting_.push_back(this);
  }

  ~ChunkedOperation() override {
    std::erase(owner_.starting_, this);
    for (Slot* chunk : chunks_) release(*chunk);
  }

  bool poll() final {
    do start_chunks();
    while (end_chunk());
    return next_ == total_ && chunks_.empty();
  }

  std::uint64_t progress() const final {
    std::uint64_t progress = progress_;
    for (const Slot* chunk : chunks_) {
      if (chunk->operation) progress += chunk->operation->progress();
    }
    return progress;
  }

  PackingTimes packing() const final { return packing_; }

 protected:
  virtual std::unique_ptr<Operation> start_chunk(Slot& chunk) = 0;
  /// Returns the next operation for the chunk, when the one before is done; null if there is none.
  virtual std::unique_ptr<Operation> continue_chunk(Slot& /*chunk*/) { return nullptr; }
  /// Called in the order in which chunks were started.
  virtual void end_chunk(const Slot& chunk) = 0;

  std::byte* reserve(Slot& chunk, std::size_t bytes) {
    chunk.memory = chunk.buffer.reserve(bytes);
    std::size_t capacity = 0;
    for (const Slot& slot : *owner_.slots_) capacity += slot.buffer.capacity();
    owner_.counters_.buffer_bytes.raise_to(capacity);
    return chunk.memory;
  }

  /// Copy the elements of a chunk, of `width` bytes, from and to the next places of a segment list.
  /// @{
  void pack_next(const Slot& chunk, SegmentCursor& cursor, std::size_t width, const auto& pack) {
    std::byte* position = chunk.memory;
    cursor.advance(chunk.count, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      pack(position, segment, offset, count);
      position += count * width;
    });
    owner_.counters_.packed_bytes.add(chunk.count * width);
  }
  void unpack_next(const Slot& chunk, SegmentCursor& cursor, std::size_t width,
                   const auto& unpack) {
    const std::byte* position = chunk.memory;
    cursor.advance(chunk.count, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      unpack(position, segment, offset, count);
      position += count * width;
    });
    owner_.counters_.unpacked_bytes.add(chunk.count * width);
  }
  /// @}

  PackingBackend& owner_;

 private:
  void start_chunks() {
    if (owner_.starting_.empty() || owner_.starting_.front() != this) return;
    while (next_ < total_ && chunks_.size() < most_in_flight_) {
      const auto free = std::ranges::find(*owner_.slots_, false, &Slot::is_taken);
      if (free == owner_.slots_->end()) return;
      Slot* const chunk = &*free;
      owner_.counters_.chunks.add();
      const Stopwatch packs(packing_.pack);
      chunk->is_taken = true;
      chunks_.push_back(chunk);
      chunk->offset = next_;
      chunk->count = std::min(each_, total_ - next_);
      chunk->operation = start_chunk(*chunk);
      next_ += chunk->count;
    }
    const bool starts_more = most_in_flight_ == 1 && !chunks_.empty();
    if (next_ == total_ && !starts_more) owner_.starting_.pop_front();
  }

  /// Advances all chunks. Returns whether the oldest one has ended.
  bool end_chunk() {
    for (Slot* chunk : chunks_) advance(*chunk);
    if (chunks_.empty() || chunks_.front()->operation) return false;
    const Stopwatch unpacks(packing_.unpack);
    end_chunk(*chunks_.front());
    release(*chunks_.front());
    chunks_.pop_front();
    return true;
  }

  void advance(Slot& chunk) {
    while (chunk.operation && chunk.operation->poll()) {
      progress_ += chunk.operation->progress() + 1;
      chunk.operation.reset();
      chunk.operation = continue_chunk(chunk);
    }
  }

  static void release(Slot& chunk) noexcept {
    chunk.operation.reset();
    chunk.is_taken = false;
  }

  const std::size_t total_;
  const std::size_t each_;
  const std::size_t most_in_flight_;
  std::size_t next_ = 0;        ///< the first unit of the next chunk
  std::deque<Slot*> chunks_;    ///< in flight, in the order of their starts
  std::uint64_t progress_ = 0;  ///< of ended operations
  PackingTimes packing_;
};

/// A chunk is the next elements of a segment list, the same on every rank, worked on in place.
template <typename Pack, typename Unpack, typename Launch>
class PackingBackend::SegmentStream final : public ChunkedOperation {
 public:
  /// `width`: bytes of an element in the buffer. `reads`: whether this rank packs. `pack` and
  /// `unpack` copy `count` elements of a segment, behind its first `offset`, into the buffer and
  /// back; `launch` starts the operation on a chunk.
  SegmentStream(PackingBackend& owner, std::span<const Segment> segments, std::size_t width,
                bool reads, Pack pack, Unpack unpack, Launch launch)
      : ChunkedOperation(owner, total_elements(segments), owner.chunk_bytes_ / width),
        width_(width),
        reads_(reads),
        pack_(pack),
        unpack_(unpack),
        launch_(launch),
        in_(segments),
        out_(segments) {}

 private:
  std::unique_ptr<Operation> start_chunk(Slot& chunk) override {
    reserve(chunk, chunk.count * width_);
    if (reads_) pack_next(chunk, in_, width_, pack_);
    chunk.segment = {chunk.memory, chunk.memory, chunk.count};
    return launch_(chunk);
  }
  void end_chunk(const Slot& chunk) override { unpack_next(chunk, out_, width_, unpack_); }

  const std::size_t width_;
  const bool reads_;
  const Pack pack_;
  const Unpack unpack_;
  const Launch launch_;
  SegmentCursor in_;
  SegmentCursor out_;
};

/// An allreduce with a wire_dtype. The packed backend could reduce halves only as f32, twice as
/// large, so it moves plain bytes. Every rank gets its part of the chunk from each, reduces the
/// part in the order of ranks, and gives it to all. When it does so depends on when the parts come:
/// it has one chunk in flight (Note [Order of chunks]).
class PackingBackend::CompressedAllreduce final : public ChunkedOperation {
 public:
  CompressedAllreduce(PackingBackend& owner, const AllreduceCall& call)
      : ChunkedOperation(owner, total_elements(call.segments), most_elements(owner), 1),
        call_(call),
        ranks_(static_cast<std::size_t>(owner.size_)),
        reduction_({.dtype = *call.wire_dtype, .op = call.op, .final = call.final}),
        inputs_(ranks_, nullptr),
        in_(call.segments),
        out_(call.segments) {}

 private:
  static constexpr std::size_t kWidth = 2;  ///< bytes of a half

  /// The buffer holds a chunk, and behind it this rank's part of it from every rank.
  static std::size_t most_elements(const PackingBackend& owner) {
    // The parts of a chunk may be an element larger than even ones.
    const std::size_t rest = owner.slot_bytes_ / kWidth - static_cast<std::size_t>(owner.size_);
    return std::min(rest / 2, owner.chunk_bytes_ / kWidth);
  }

  void pack(std::byte* to, const Segment& segment, std::size_t offset, std::size_t count) const {
    if (segment.input == nullptr) {
      fill_neutral(to, count, *call_.wire_dtype, call_.op, false);
    } else {
      best_kernels().narrow(to, advanced(segment.input, offset * size_of(call_.dtype)), count,
                            conversion({call_.prescale, 1.0}), Store::Regular);
    }
  }

  void end_chunk(const Slot& chunk) override {
    unpack_next(chunk, out_, kWidth,
                [this](const std::byte* from, const Segment& segment, std::size_t offset,
                       std::size_t count) {
                  if (segment.output == nullptr) return;
                  best_kernels().widen(advanced(segment.output, offset * size_of(call_.dtype)),
                                       from, count, conversion({}), Store::Regular);
                });
  }

  Conversion conversion(const Scaling& scaling) const {
    return {.half = *call_.wire_dtype, .full = call_.dtype, .scaling = scaling};
  }

  std::unique_ptr<Operation> start_chunk(Slot& chunk) override {
    reserve(chunk, (2 * chunk.count + ranks_) * kWidth);
    pack_next(chunk, in_, kWidth, [this](const auto&... piece) { pack(piece...); });
    part_bytes_ = even_counts(chunk.count, ranks_);
    for (std::size_t& part : part_bytes_) part *= kWidth;
    own_bytes_.assign(ranks_, part_bytes_[owner_.own()]);
    parts_ = chunk.memory + chunk.count * kWidth;
    return owner_.packed_->alltoall({.input = chunk.memory,
                                     .output = parts_,
                                     .send_counts = part_bytes_,
                                     .receive_counts = own_bytes_,
                                     .largest_count = part_bytes_.front(),
                                     .dtype = DataType::U8});
  }

  std::unique_ptr<Operation> continue_chunk(Slot& chunk) override {
    if (parts_ == nullptr) return nullptr;
    const std::size_t bytes = own_bytes_.front();
    for (std::size_t rank = 0; rank < ranks_; ++rank) inputs_[rank] = parts_ + rank * bytes;
    best_kernels().reduce(parts_, inputs_, bytes / kWidth, reduction_, Store::Regular);
    return owner_.packed_->allgather({.input = std::exchange(parts_, nullptr),
                                      .output = chunk.memory,
                                      .counts = part_bytes_,
                                      .dtype = DataType::U8});
  }

  const AllreduceCall call_;
  const std::size_t ranks_;
  const Reduction reduction_;
  std::vector<const void*> inputs_;      ///< by rank
  std::vector<std::size_t> part_bytes_;  ///< of the chunk, by rank
  std::vector<std::size_t> own_bytes_;   ///< what comes from every rank
  std::byte* parts_ = nullptr;  ///< this rank's part of every rank's chunk; null: already reduced
  SegmentCursor in_;
  SegmentCursor out_;
};

/// A chunk takes a piece of every part, at most the same number of units each, so that all ranks
/// need equally many chunks. The slot holds the pieces of the input, and behind them those of the
/// output.
template <typename Pack, typename Unpack, typename Launch>
class PackingBackend::PartStream final : public ChunkedOperation {
 public:
  /// `most`: units of the largest part, of all ranks. `width`: bytes of a unit in the buffer.
  /// `pack` and `unpack` copy `count` units of the whole input or output, behind its first
  /// `offset`; `launch` starts the operation on a chunk, whose count is that of the largest piece
  /// of all ranks, from an input to an output.
  PartStream(PackingBackend& owner, Parts in, Parts out, std::size_t most, std::size_t width,
             Pack pack, Unpack unpack, Launch launch)
      : ChunkedOperation(owner, most, each(owner, in.size() + out.size(), width)),
        in_(std::move(in)),
        out_(std::move(out)),
        width_(width),
        pack_(pack),
        unpack_(unpack),
        launch_(launch) {}

 private:
  /// Units of one part in a chunk.
  static std::size_t each(const PackingBackend& owner, std::size_t parts, std::size_t width) {
    return std::max<std::size_t>(owner.slot_bytes_ / (parts * width), 1);
  }

  std::unique_ptr<Operation> start_chunk(Slot& chunk) override {
    const std::size_t in_total = cut(in_, chunk, chunk.in_pieces);
    const std::size_t out_total = cut(out_, chunk, chunk.out_pieces);
    std::byte* position = reserve(chunk, (in_total + out_total) * width_);
    for (std::size_t part = 0; part < in_.size(); ++part) {
      const auto [offset, count] = in_.piece(part, chunk.offset, chunk.count);
      if (count > 0) pack_(position, offset, count);
      position += count * width_;
    }
    owner_.counters_.packed_bytes.add(in_total * width_);
    return launch_(chunk, chunk.memory, position);
  }

  void end_chunk(const Slot& chunk) override {
    const std::byte* position = chunk.memory + width_ * sum(chunk.in_pieces);
    for (std::size_t part = 0; part < out_.size(); ++part) {
      const auto [offset, count] = out_.piece(part, chunk.offset, chunk.count);
      if (count > 0) unpack_(position, offset, count);
      position += count * width_;
      owner_.counters_.unpacked_bytes.add(count * width_);
    }
  }

  /// Computes the units of every part in this chunk; returns their sum.
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
  const Pack pack_;
  const Unpack unpack_;
  const Launch launch_;
};

/// Plain bytes to one rank, or from it.
class PackingBackend::Message final : public ChunkedOperation {
 public:
  /// `from`: null: it is received from the peer.
  Message(PackingBackend& owner, const void* from, void* to, std::size_t bytes, int peer)
      : ChunkedOperation(owner, bytes, std::min(owner.slot_bytes_, 2 * kShare)),
        from_(from),
        to_(to),
        peer_(peer) {}

 private:
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

  const void* const from_;
  void* const to_;
  const int peer_;
};

PackingBackend::PackingBackend(std::unique_ptr<Backend> packed, int size, int rank,
                               std::size_t buffer_bytes)
    : packed_(std::move(packed)),
      packed_capabilities_(packed_->capabilities()),
      size_(size),
      rank_(rank),
      slot_count_(
          std::clamp<std::size_t>(packed_capabilities_.operations_in_flight, 1, kMostSlots)),
      // Whole cache lines, so that a full buffer does not end with a chunk of a few bytes. A
      // PartStream has an element of every part in it, at least.
      slot_bytes_(
          std::max({slot_count_ == 1 ? buffer_bytes : rounded_up(buffer_bytes / slot_count_, 64),
                    std::size_t{64}, kLargestElement * (static_cast<std::size_t>(size) + 1)})),
      chunk_bytes_(std::min(slot_bytes_, kShare * static_cast<std::size_t>(size))) {
  for (std::size_t i = 0; i < slot_count_; ++i) slots_->emplace_back(slot_bytes_);
}

Capabilities PackingBackend::capabilities() const {
  Capabilities capabilities = packed_capabilities_;
  capabilities.wants_packed = false;
  capabilities.set_wire_dtypes();
  capabilities.operations_in_flight = slot_count_;
  return capabilities;
}

std::unique_ptr<Operation> PackingBackend::stream_segments(std::span<const Segment> segments,
                                                           std::size_t width, bool reads, auto pack,
                                                           auto unpack, auto launch) {
  using Stream = SegmentStream<decltype(pack), decltype(unpack), decltype(launch)>;
  return std::make_unique<Stream>(*this, segments, width, reads, pack, unpack, launch);
}

std::unique_ptr<Operation> PackingBackend::stream_parts(Parts in, Parts out, std::size_t most,
                                                        std::size_t width, auto pack, auto unpack,
                                                        auto launch) {
  using Stream = PartStream<decltype(pack), decltype(unpack), decltype(launch)>;
  return std::make_unique<Stream>(*this, std::move(in), std::move(out), most, width, pack, unpack,
                                  launch);
}

std::unique_ptr<Operation> PackingBackend::stream_bytes(
    const void* input, std::span<const std::size_t> in_counts, void* output,
    std::span<const std::size_t> out_counts, std::size_t most, DataType dtype, auto launch) {
  const std::size_t unit = size_of(dtype);
  const auto pack = [=](std::byte* to, std::size_t offset, std::size_t count) {
    std::memcpy(to, advanced(input, offset), count);
  };
  const auto unpack = [=](const std::byte* from, std::size_t offset, std::size_t count) {
    if (output != nullptr) std::memcpy(advanced(output, offset), from, count);
  };
  return stream_parts(Parts(in_counts, unit), Parts(out_counts, unit), most * unit, 1, pack, unpack,
                      launch);
}

std::unique_ptr<Operation> PackingBackend::allreduce(const AllreduceCall& call) {
  if (call.wire_dtype) return std::make_unique<CompressedAllreduce>(*this, call);
  const Reduction work = call.reduction();
  const bool widen = packed_capabilities_.widen_halves;
  const DataType wire = packed_dtype(call.dtype, widen);
  return stream_segments(
      call.segments, size_of(wire), true,
      [=](std::byte* to, const Segment& segment, std::size_t offset, std::size_t count) {
        pack_input(to, segment.input, offset, count, work, widen);
      },
      [=](const std::byte* from, const Segment& segment, std::size_t offset, std::size_t count) {
        unpack_output(segment.output, from, offset, count, work, widen);
      },
      [this, wire, op = call.op](const Slot& chunk) {
        return packed_->allreduce({.segments = {&chunk.segment, 1}, .dtype = wire, .op = op});
      });
}

std::unique_ptr<Operation> PackingBackend::broadcast(const BroadcastCall& call) {
  const bool is_root = call.root == rank_;
  const std::size_t width = size_of(call.dtype);
  return stream_segments(
      call.segments, width, is_root,
      [=](std::byte* to, const Segment& segment, std::size_t offset, std::size_t count) {
        std::memcpy(to, advanced(segment.input, offset * width), count * width);
      },
      [=](const std::byte* from, const Segment& segment, std::size_t offset, std::size_t count) {
        if (is_root && segment.input == segment.output) return;
        std::memcpy(advanced(segment.output, offset * width), from, count * width);
      },
      [this, width, root = call.root](Slot& chunk) {
        chunk.segment.count *= width;
        return packed_->broadcast(
            {.segments = {&chunk.segment, 1}, .dtype = DataType::U8, .root = root});
      });
}

std::unique_ptr<Operation> PackingBackend::allgather(const AllgatherCall& call) {
  return stream_bytes(
      call.input, call.counts.subspan(own(), 1), call.output, call.counts,
      std::ranges::max(call.counts), call.dtype,
      [this](const Slot& chunk, const std::byte* input, std::byte* output) {
        return packed_->allgather(
            {.input = input, .output = output, .counts = chunk.out_pieces, .dtype = DataType::U8});
      });
}

std::unique_ptr<Operation> PackingBackend::alltoall(const AlltoallCall& call) {
  return stream_bytes(call.input, call.send_counts, call.output, call.receive_counts,
                      call.largest_count, call.dtype,
                      [this](const Slot& chunk, const std::byte* input, std::byte* output) {
                        return packed_->alltoall({.input = input,
                                                  .output = output,
                                                  .send_counts = chunk.in_pieces,
                                                  .receive_counts = chunk.out_pieces,
                                                  .largest_count = chunk.count,
                                                  .dtype = DataType::U8});
                      });
}

std::unique_ptr<Operation> PackingBackend::reducescatter(const ReducescatterCall& call) {
  const Reduction work = call.reduction();
  const bool widen = packed_capabilities_.widen_halves;
  const DataType wire = packed_dtype(call.dtype, widen);
  return stream_parts(
      Parts(call.counts, 1), Parts(call.counts.subspan(own(), 1), 1), std::ranges::max(call.counts),
      size_of(wire),
      [=, from = call.input](std::byte* to, std::size_t offset, std::size_t count) {
        pack_input(to, from, offset, count, work, widen);
      },
      [=, to = call.output](const std::byte* from, std::size_t offset, std::size_t count) {
        unpack_output(to, from, offset, count, work, widen);
      },
      [this, wire, op = call.op](const Slot& chunk, const std::byte* input, std::byte* output) {
        return packed_->reducescatter(
            {.input = input, .output = output, .counts = chunk.in_pieces, .dtype = wire, .op = op});
      });
}

std::unique_ptr<Operation> PackingBackend::send(const SendCall& call) {
  const std::size_t bytes = call.count * size_of(call.dtype);
  return std::make_unique<Message>(*this, call.input, nullptr, bytes, call.peer);
}

std::unique_ptr<Operation> PackingBackend::recv(const RecvCall& call) {
  const std::size_t bytes = call.count * size_of(call.dtype);
  return std::make_unique<Message>(*this, nullptr, call.output, bytes, call.peer);
}

void PackingBackend::abort() noexcept {
  packed_->abort();
  if (packed_->keep(slots_)) return;
  for (Slot& slot : *slots_) slot.buffer.abandon();
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

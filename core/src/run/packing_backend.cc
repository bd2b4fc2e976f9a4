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
template <typename Call>
void pack_input(std::byte* to, const void* input, std::size_t offset, std::size_t count,
                const Call& call, bool widen) {
  if (input == nullptr) return fill_neutral(to, count, call.dtype, call.op, widen);
  pack_elements(to, advanced(input, offset * size_of(call.dtype)), count, call.dtype,
                {call.prescale, 1.0}, widen);
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
class PackingBackend::SegmentStream : public ChunkedOperation {
 public:
  /// `width`: bytes of an element in the buffer.
  SegmentStream(PackingBackend& owner, std::span<const Segment> segments, std::size_t width)
      : SegmentStream(owner, segments, width, owner.chunk_bytes_ / width, kMostSlots) {}
  /// `most`: elements of a chunk.
  SegmentStream(PackingBackend& owner, std::span<const Segment> segments, std::size_t width,
                std::size_t most, std::size_t most_in_flight)
      : ChunkedOperation(owner, total_elements(segments), most, most_in_flight),
        width_(width),
        in_(segments),
        out_(segments) {}

 protected:
  virtual bool reads() const { return true; }
  /// Copy from the segment into the buffer, and back.
  virtual void pack(std::byte* to, const Segment& segment, std::size_t offset,
                    std::size_t count) = 0;
  virtual void unpack(const std::byte* from, const Segment& segment, std::size_t offset,
                      std::size_t count) = 0;
  virtual std::unique_ptr<Operation> launch(Slot& chunk) = 0;
  /// Returns the bytes that are needed behind those of the chunk.
  virtual std::size_t extra_bytes(std::size_t /*count*/) const { return 0; }

 private:
  std::unique_ptr<Operation> start_chunk(Slot& chunk) final {
    std::byte* position = reserve(chunk, chunk.count * width_ + extra_bytes(chunk.count));
    if (reads()) {
      in_.advance(chunk.count, [&](const Segment& segment, std::size_t offset, std::size_t count) {
        pack(position, segment, offset, count);
        position += count * width_;
      });
      owner_.counters_.packed_bytes.add(chunk.count * width_);
    }
    return launch(chunk);
  }

  void end_chunk(const Slot& chunk) final {
    const std::byte* position = chunk.memory;
    out_.advance(chunk.count, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      unpack(position, segment, offset, count);
      position += count * width_;
    });
    owner_.counters_.unpacked_bytes.add(chunk.count * width_);
  }

  const std::size_t width_;
  SegmentCursor in_;
  SegmentCursor out_;
};

class PackingBackend::Allreduce final : public SegmentStream {
 public:
  Allreduce(PackingBackend& owner, const AllreduceCall& call)
      : SegmentStream(owner, call.segments, size_of(owner.wire(call.dtype))),
        call_(call),
        widen_(owner.packed_capabilities_.widen_halves) {}

 private:
  void pack(std::byte* to, const Segment& segment, std::size_t offset, std::size_t count) override {
    pack_input(to, segment.input, offset, count, call_, widen_);
  }

  void unpack(const std::byte* from, const Segment& segment, std::size_t offset,
              std::size_t count) override {
    if (segment.output == nullptr) return;
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

/// An allreduce with a wire_dtype. The packed backend could reduce halves only as f32, twice as
/// large, so it moves plain bytes. Every rank gets its part of the chunk from each, reduces the
/// part in the order of ranks, and gives it to all. When it does so depends on when the parts come:
/// it has one chunk in flight (Note [Order of chunks]).
class PackingBackend::CompressedAllreduce final : public SegmentStream {
 public:
  CompressedAllreduce(PackingBackend& owner, const AllreduceCall& call)
      : SegmentStream(owner, call.segments, kWidth, most_elements(owner), 1),
        call_(call),
        ranks_(static_cast<std::size_t>(owner.size_)),
        reduction_({.dtype = *call.wire_dtype, .op = call.op, .final = call.final}),
        inputs_(ranks_, nullptr) {}

 private:
  static constexpr std::size_t kWidth = 2;  ///< bytes of a half

  /// The buffer holds a chunk, and behind it this rank's part of it from every rank.
  static std::size_t most_elements(const PackingBackend& owner) {
    // The parts of a chunk may be an element larger than even ones.
    const std::size_t rest = owner.slot_bytes_ / kWidth - static_cast<std::size_t>(owner.size_);
    return std::min(rest / 2, owner.chunk_bytes_ / kWidth);
  }

  std::size_t extra_bytes(std::size_t count) const override { return (count + ranks_) * kWidth; }

  void pack(std::byte* to, const Segment& segment, std::size_t offset, std::size_t count) override {
    if (segment.input == nullptr) {
      fill_neutral(to, count, *call_.wire_dtype, call_.op, false);
    } else {
      best_kernels().narrow(to, advanced(segment.input, offset * size_of(call_.dtype)), count,
                            conversion({call_.prescale, 1.0}), Store::Regular);
    }
  }

  void unpack(const std::byte* from, const Segment& segment, std::size_t offset,
              std::size_t count) override {
    if (segment.output == nullptr) return;
    best_kernels().widen(advanced(segment.output, offset * size_of(call_.dtype)), from, count,
                         conversion({}), Store::Regular);
  }

  Conversion conversion(const Scaling& scaling) const {
    return {.half = *call_.wire_dtype, .full = call_.dtype, .scaling = scaling};
  }

  std::unique_ptr<Operation> launch(Slot& chunk) override {
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

  const void* const from_;  ///< null: it is received from the peer
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

PackingBackend::~PackingBackend() = default;

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
  if (call.wire_dtype) return std::make_unique<CompressedAllreduce>(*this, call);
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
  if (packed_->keep(slots_)) return;
  for (Slot& slot : *slots_) slot.buffer.abandon();
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

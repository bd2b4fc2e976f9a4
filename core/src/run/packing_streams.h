// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "core/src/base/monotonic_clock.h"
#include "core/src/run/packing_backend.h"
#include "ronde/division.h"
#include "ronde/plugin/segment_cursor.h"

// Base classes of the operations of a PackingBackend.

namespace ronde {

/// Adds the time of a scope.
class Stopwatch {
 public:
  explicit Stopwatch(std::chrono::nanoseconds& total) : total_(total) {}
  ~Stopwatch() { total_ += MonotonicClock::now() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::chrono::nanoseconds& total_;
  const std::chrono::steady_clock::time_point begin_ = MonotonicClock::now();
};

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
  /// Of `total` units, a chunk has at most `each`. `most_in_flight`: chunks.
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
  /// The next operation for the chunk, when the one before is done; null if there is none.
  virtual std::unique_ptr<Operation> continue_chunk(Slot& chunk) {
    static_cast<void>(chunk);
    return nullptr;
  }
  /// In the order in which they were started.
  virtual void end_chunk(const Slot& chunk) = 0;

  std::byte* reserve(Slot& chunk, std::size_t bytes) {
    chunk.memory = chunk.buffer.reserve(bytes);
    std::size_t capacity = 0;
    for (const Slot& slot : owner_.slots_) capacity += slot.buffer.capacity();
    owner_.counters_.buffer_bytes.raise_to(capacity);
    return chunk.memory;
  }

  PackingBackend& owner_;

 private:
  void start_chunks() {
    if (owner_.starting_.empty() || owner_.starting_.front() != this) return;
    while (next_ < total_ && chunks_.size() < most_in_flight_) {
      Slot* const chunk = owner_.free_slot();
      if (chunk == nullptr) return;
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

  /// Advances all chunks; true if the oldest one has ended.
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
  std::uint64_t progress_ = 0;  ///< of what is done
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
  virtual bool reads() const = 0;
  /// Copy from the segment into the buffer, and back.
  virtual void pack(std::byte* to, const Segment& segment, std::size_t offset,
                    std::size_t count) = 0;
  virtual void unpack(const std::byte* from, const Segment& segment, std::size_t offset,
                      std::size_t count) = 0;
  virtual std::unique_ptr<Operation> launch(Slot& chunk) = 0;
  /// Bytes that are needed behind those of the chunk.
  virtual std::size_t extra_bytes(std::size_t count) const {
    static_cast<void>(count);
    return 0;
  }

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

}  // namespace ronde

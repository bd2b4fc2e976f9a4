// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "core/src/execute/packing_backend.h"
#include "ronde/division.h"
#include "ronde/plugin/segment_cursor.h"

// Base classes of the operations of a PackingBackend.

namespace ronde {

constexpr ReduceOp packed_op(ReduceOp op) noexcept {
  return op == ReduceOp::Average ? ReduceOp::Sum : op;
}

/// Adds the time of a scope.
class Stopwatch {
 public:
  explicit Stopwatch(std::chrono::nanoseconds& total) : total_(total) {}
  ~Stopwatch() { total_ += std::chrono::steady_clock::now() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::chrono::nanoseconds& total_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Runs chunk after chunk through the buffer.
class PackingBackend::ChunkedOperation : public Operation {
 public:
  explicit ChunkedOperation(PackingBackend& owner) : owner_(owner) {}

  bool poll() final {
    for (;;) {
      if (!chunk_) {
        if (finished()) return true;
        owner_.counters_.chunks.add();
        const Stopwatch packs(packing_.pack);
        chunk_ = start_chunk();
      }
      if (!chunk_->poll()) return false;
      progress_ += chunk_->progress() + 1;
      chunk_.reset();
      chunk_ = continue_chunk();
      if (chunk_) continue;
      const Stopwatch unpacks(packing_.unpack);
      end_chunk();
    }
  }

  std::uint64_t progress() const final { return progress_ + (chunk_ ? chunk_->progress() : 0); }

  PackingTimes packing() const final { return packing_; }

 protected:
  virtual bool finished() const = 0;
  virtual std::unique_ptr<Operation> start_chunk() = 0;
  /// The next operation for the chunk, when the one before is done; null if there is none.
  virtual std::unique_ptr<Operation> continue_chunk() { return nullptr; }
  virtual void end_chunk() = 0;

  std::byte* buffer(std::size_t bytes) {
    std::byte* memory = owner_.buffer_.reserve(bytes);
    owner_.counters_.buffer_bytes.raise_to(owner_.buffer_.capacity());
    return memory;
  }

  PackingBackend& owner_;

 private:
  std::unique_ptr<Operation> chunk_;
  std::uint64_t progress_ = 0;  ///< of what is done
  PackingTimes packing_;
};

/// A chunk is the next elements of a segment list, the same on every rank, worked on in place.
class PackingBackend::SegmentStream : public ChunkedOperation {
 public:
  /// `width`: bytes of an element in the buffer.
  SegmentStream(PackingBackend& owner, std::span<const Segment> segments, std::size_t width)
      : SegmentStream(owner, segments, width, owner.chunk_bytes_ / width) {}
  /// `most`: elements of a chunk.
  SegmentStream(PackingBackend& owner, std::span<const Segment> segments, std::size_t width,
                std::size_t most)
      : ChunkedOperation(owner),
        width_(width),
        most_(most),
        in_(segments),
        out_(segments),
        remaining_(total_elements(segments)) {}

 protected:
  virtual bool reads() const = 0;
  /// Copy from the segment into the buffer, and back.
  virtual void pack(std::byte* to, const Segment& segment, std::size_t offset,
                    std::size_t count) = 0;
  virtual void unpack(const std::byte* from, const Segment& segment, std::size_t offset,
                      std::size_t count) = 0;
  virtual std::unique_ptr<Operation> launch(std::byte* memory, std::size_t count) = 0;
  /// Bytes that are needed behind those of the chunk.
  virtual std::size_t extra_bytes(std::size_t count) const {
    static_cast<void>(count);
    return 0;
  }

 private:
  bool finished() const final { return remaining_ == 0; }

  std::unique_ptr<Operation> start_chunk() final {
    count_ = std::min(remaining_, most_);
    memory_ = buffer(count_ * width_ + extra_bytes(count_));
    if (reads()) {
      std::byte* position = memory_;
      in_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
        pack(position, segment, offset, count);
        position += count * width_;
      });
      owner_.counters_.packed_bytes.add(count_ * width_);
    }
    return launch(memory_, count_);
  }

  void end_chunk() final {
    const std::byte* position = memory_;
    out_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      unpack(position, segment, offset, count);
      position += count * width_;
    });
    owner_.counters_.unpacked_bytes.add(count_ * width_);
    remaining_ -= count_;
  }

  const std::size_t width_;
  const std::size_t most_;
  SegmentCursor in_;
  SegmentCursor out_;
  std::size_t remaining_;
  std::size_t count_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "packing_backend.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "elementwise.h"
#include "ronde/kernels.h"
#include "ronde/segment_cursor.h"

namespace ronde {
namespace {

const std::byte* advanced(const void* base, std::size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
std::byte* advanced(void* base, std::size_t bytes) {
  return static_cast<std::byte*>(base) + bytes;
}

}  // namespace

/// Runs chunk after chunk through the buffer.
class PackingBackend::ChunkedOperation : public Operation {
 public:
  explicit ChunkedOperation(PackingBackend& owner) : owner_(owner) {}

  bool poll() final {
    for (;;) {
      if (!chunk_) {
        if (finished()) return true;
        owner_.counters_.chunks.add();
        chunk_ = start_chunk();
      }
      if (!chunk_->poll()) return false;
      chunk_.reset();
      end_chunk();
    }
  }

 protected:
  virtual bool finished() const = 0;
  virtual std::unique_ptr<Operation> start_chunk() = 0;
  virtual void end_chunk() = 0;

  std::byte* buffer(std::size_t bytes) {
    std::byte* memory = owner_.buffer_.reserve(bytes);
    owner_.counters_.buffer_bytes.raise_to(owner_.buffer_.capacity());
    return memory;
  }

  PackingBackend& owner_;

 private:
  std::unique_ptr<Operation> chunk_;
};

class PackingBackend::Allreduce final : public ChunkedOperation {
 public:
  Allreduce(PackingBackend& owner, const AllreduceCall& call)
      : ChunkedOperation(owner),
        call_(call),
        widen_(owner.packed_capabilities_.widen_halves),
        wire_(wire_dtype(call.dtype, widen_)),
        final_scaling_(final_scaling(call.dtype, call.op, call.postscale, owner.size_)),
        in_(call.segments),
        out_(call.segments),
        remaining_(total_elements(call.segments)) {}

 private:
  bool finished() const override { return remaining_ == 0; }

  std::unique_ptr<Operation> start_chunk() override {
    count_ = std::min(remaining_, owner_.buffer_.limit() / size_of(wire_));
    memory_ = buffer(count_ * size_of(wire_));
    std::byte* position = memory_;
    in_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      if (segment.input == nullptr) {
        fill_neutral(position, count, call_.dtype, call_.op, widen_);
      } else {
        pack_elements(position, advanced(segment.input, offset * size_of(call_.dtype)), count,
                      call_.dtype, {call_.prescale, 1.0}, widen_);
      }
      position += count * size_of(wire_);
    });
    owner_.counters_.packed_bytes.add(count_ * size_of(wire_));
    segment_ = {memory_, memory_, count_};
    const ReduceOp op = call_.op == ReduceOp::Average ? ReduceOp::Sum : call_.op;
    return owner_.packed_->allreduce({.segments = {&segment_, 1}, .dtype = wire_, .op = op});
  }

  void end_chunk() override {
    const std::byte* position = memory_;
    out_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      unpack_elements(advanced(segment.output, offset * size_of(call_.dtype)), position, count,
                      call_.dtype, final_scaling_, widen_);
      position += count * size_of(wire_);
    });
    owner_.counters_.unpacked_bytes.add(count_ * size_of(wire_));
    remaining_ -= count_;
  }

  const AllreduceCall call_;
  const bool widen_;
  const DataType wire_;
  const Scaling final_scaling_;
  SegmentCursor in_;
  SegmentCursor out_;
  std::size_t remaining_;
  std::size_t count_ = 0;
  std::byte* memory_ = nullptr;
  Segment segment_;
};

class PackingBackend::Broadcast final : public ChunkedOperation {
 public:
  Broadcast(PackingBackend& owner, const BroadcastCall& call, bool is_root)
      : ChunkedOperation(owner),
        call_(call),
        is_root_(is_root),
        in_(call.segments),
        out_(call.segments),
        remaining_(total_elements(call.segments)) {}

 private:
  bool finished() const override { return remaining_ == 0; }

  std::unique_ptr<Operation> start_chunk() override {
    const std::size_t width = size_of(call_.dtype);
    count_ = std::min(remaining_, owner_.buffer_.limit() / width);
    memory_ = buffer(count_ * width);
    if (is_root_) {
      std::byte* position = memory_;
      in_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
        std::memcpy(position, advanced(segment.input, offset * width), count * width);
        position += count * width;
      });
      owner_.counters_.packed_bytes.add(count_ * width);
    }
    segment_ = {memory_, memory_, count_ * width};
    return owner_.packed_->broadcast(
        {.segments = {&segment_, 1}, .dtype = DataType::U8, .root = call_.root});
  }

  void end_chunk() override {
    const std::size_t width = size_of(call_.dtype);
    const std::byte* position = memory_;
    out_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      std::byte* target = advanced(segment.output, offset * width);
      const bool in_place = is_root_ && segment.input == segment.output;
      if (!in_place) std::memcpy(target, position, count * width);
      position += count * width;
    });
    owner_.counters_.unpacked_bytes.add(count_ * width);
    remaining_ -= count_;
  }

  const BroadcastCall call_;
  const bool is_root_;
  SegmentCursor in_;
  SegmentCursor out_;
  std::size_t remaining_;
  std::size_t count_ = 0;
  std::byte* memory_ = nullptr;
  Segment segment_;
};

/// Every chunk takes the same number of bytes, at most, from each rank.
class PackingBackend::Allgather final : public ChunkedOperation {
 public:
  Allgather(PackingBackend& owner, const AllgatherCall& call, std::size_t rank)
      : ChunkedOperation(owner), call_(call), rank_(rank) {
    const std::size_t width = size_of(call.dtype);
    std::size_t offset = 0;
    for (const std::size_t count : call.counts) {
      offsets_.push_back(offset);
      bytes_.push_back(count * width);
      offset += count * width;
      most_ = std::max(most_, count * width);
    }
    chunk_counts_.resize(bytes_.size());
  }

 private:
  bool finished() const override { return done_ >= most_; }

  std::unique_ptr<Operation> start_chunk() override {
    // The buffer holds this rank's input and everybody's output.
    const std::size_t each = std::max<std::size_t>(owner_.buffer_.limit() / (bytes_.size() + 1), 1);
    std::size_t total = 0;
    for (std::size_t rank = 0; rank < bytes_.size(); ++rank) {
      chunk_counts_[rank] = bytes_[rank] > done_ ? std::min(each, bytes_[rank] - done_) : 0;
      total += chunk_counts_[rank];
    }
    const std::size_t mine = chunk_counts_[rank_];
    memory_ = buffer(mine + total);
    if (mine > 0) std::memcpy(memory_, advanced(call_.input, done_), mine);
    owner_.counters_.packed_bytes.add(mine);
    step_ = each;
    return owner_.packed_->allgather({.input = memory_,
                                      .output = memory_ + mine,
                                      .counts = chunk_counts_,
                                      .dtype = DataType::U8});
  }

  void end_chunk() override {
    const std::byte* position = memory_ + chunk_counts_[rank_];
    for (std::size_t rank = 0; rank < bytes_.size(); ++rank) {
      const std::size_t count = chunk_counts_[rank];
      if (count > 0) {
        std::memcpy(advanced(call_.output, offsets_[rank] + done_), position, count);
      }
      position += count;
      owner_.counters_.unpacked_bytes.add(count);
    }
    done_ += step_;
  }

  const AllgatherCall call_;
  const std::size_t rank_;
  std::vector<std::size_t> offsets_;  ///< in bytes, of every rank's part of the output
  std::vector<std::size_t> bytes_;    ///< of every rank
  std::size_t most_ = 0;
  std::size_t done_ = 0;  ///< bytes of every rank (that has as many) already moved
  std::size_t step_ = 0;
  std::vector<std::size_t> chunk_counts_;
  std::byte* memory_ = nullptr;
};

PackingBackend::PackingBackend(std::unique_ptr<Backend> packed, int size, int rank,
                               std::size_t buffer_bytes)
    : packed_(std::move(packed)),
      packed_capabilities_(packed_->capabilities()),
      size_(size),
      rank_(rank),
      // An allgather has a byte of its own and one of every rank in the buffer, at least.
      buffer_(std::max(buffer_bytes, static_cast<std::size_t>(size) + 1)) {}

PackingBackend::~PackingBackend() = default;

Capabilities PackingBackend::capabilities() const {
  Capabilities capabilities = packed_capabilities_;
  capabilities.wants_packed = false;
  return capabilities;
}

std::unique_ptr<Operation> PackingBackend::allreduce(const AllreduceCall& call) {
  return std::make_unique<Allreduce>(*this, call);
}

std::unique_ptr<Operation> PackingBackend::broadcast(const BroadcastCall& call) {
  return std::make_unique<Broadcast>(*this, call, call.root == rank_);
}

std::unique_ptr<Operation> PackingBackend::allgather(const AllgatherCall& call) {
  return std::make_unique<Allgather>(*this, call, static_cast<std::size_t>(rank_));
}

void PackingBackend::abort() noexcept {
  packed_->abort();
  buffer_.abandon();
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

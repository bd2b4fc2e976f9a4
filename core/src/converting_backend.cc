// SPDX-License-Identifier: Apache-2.0
#include "converting_backend.h"

#include <algorithm>
#include <bitset>

#include "ronde/kernels.h"
#include "ronde/segment_cursor.h"

namespace ronde {
namespace {

/// Of the buffer: from there on larger pieces are no faster.
constexpr std::size_t kMostBytes = std::size_t{4} << 20;

std::bitset<kDataTypeCount> halves() {
  Capabilities all;
  all.set_wire_dtypes();
  return all.wire_dtypes;
}

}  // namespace

/// The backend reduces the converted elements as if they were a tensor of the user.
class ConvertingBackend::Converted final : public Operation {
 public:
  Converted(ConvertingBackend& owner, const AllreduceCall& call)
      : owner_(owner),
        call_(call),
        width_(size_of(*call.wire_dtype)),
        in_(call.segments),
        out_(call.segments),
        remaining_(total_elements(call.segments)) {}

  bool poll() override {
    while (chunk_ || remaining_ > 0) {
      if (!chunk_) start_chunk();
      if (!chunk_->poll()) return false;
      end_chunk();
    }
    return true;
  }

  std::uint64_t progress() const override { return progress_ + (chunk_ ? chunk_->progress() : 0); }

 private:
  Conversion conversion(const Scaling& scaling) const {
    return {.half = *call_.wire_dtype, .full = call_.dtype, .scaling = scaling};
  }

  void start_chunk() {
    pieces_.clear();
    count_ = std::min(remaining_, owner_.buffer_.limit() / width_);
    std::byte* position = owner_.buffer_.reserve(count_ * width_);
    in_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      const auto* from = static_cast<const std::byte*>(segment.input);
      // A rank that adds nothing says so of each piece.
      pieces_.push_back({from != nullptr ? position : nullptr, position, count});
      if (from != nullptr) {
        best_kernels().narrow(position, from + offset * size_of(call_.dtype), count,
                              conversion({call_.prescale, 1.0}), Store::Regular);
      }
      position += count * width_;
    });
    AllreduceCall call = call_;
    call.segments = pieces_;
    call.dtype = *call_.wire_dtype;
    call.wire_dtype.reset();
    call.prescale = 1.0;
    chunk_ = owner_.inner_->allreduce(call);
  }

  void end_chunk() {
    progress_ += chunk_->progress() + 1;
    chunk_.reset();
    auto piece = pieces_.begin();
    out_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      auto* const to = static_cast<std::byte*>(segment.output);
      best_kernels().widen(to + offset * size_of(call_.dtype), (piece++)->output, count,
                           conversion({}), Store::Regular);
    });
    remaining_ -= count_;
  }

  ConvertingBackend& owner_;
  const AllreduceCall call_;
  const std::size_t width_;
  SegmentCursor in_;
  SegmentCursor out_;
  std::size_t remaining_;
  std::size_t count_ = 0;
  std::vector<Segment> pieces_;  ///< of the chunk, in the buffer
  std::unique_ptr<Operation> chunk_;
  std::uint64_t progress_ = 0;
};

ConvertingBackend::ConvertingBackend(std::unique_ptr<Backend> inner, std::size_t buffer_bytes)
    : inner_(std::move(inner)),
      inner_capabilities_(inner_->capabilities()),
      buffer_(std::min(buffer_bytes, kMostBytes)) {}

Capabilities ConvertingBackend::capabilities() const {
  Capabilities capabilities = inner_->capabilities();
  capabilities.wire_dtypes |= capabilities.dtypes & halves();
  return capabilities;
}

std::unique_ptr<Operation> ConvertingBackend::allreduce(const AllreduceCall& call) {
  if (!call.wire_dtype || inner_capabilities_.supports_wire(*call.wire_dtype)) {
    return inner_->allreduce(call);
  }
  return std::make_unique<Converted>(*this, call);
}

void ConvertingBackend::abort() noexcept {
  inner_->abort();
  buffer_.abandon();
}

}  // namespace ronde

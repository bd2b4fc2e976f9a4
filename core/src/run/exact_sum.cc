// SPDX-License-Identifier: Apache-2.0
// Chunk by chunk: copy elements and widen them to words, let the backend sum these, make the
// results and copy them back.
#include "core/src/run/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/src/base/steps.h"
#include "core/src/run/fusion_buffer.h"
#include "ronde/division.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde {
namespace {

/// Elements of a chunk: its words stay in the caches.
constexpr std::size_t kChunk = std::size_t{1} << 16;

__extension__ using Int128 = __int128;  // -Wpedantic knows no such type

/// Calls `visit` with a value of the type.
template <typename Visit>
void with_integer(DataType dtype, Visit visit) {
  if (dtype == DataType::U8) visit(std::uint8_t{});
  if (dtype == DataType::I8) visit(std::int8_t{});
  if (dtype == DataType::I16) visit(std::int16_t{});
  if (dtype == DataType::I32) visit(std::int32_t{});
  if (dtype == DataType::I64) visit(std::int64_t{});
  if (dtype == DataType::U16) visit(std::uint16_t{});
  if (dtype == DataType::U32) visit(std::uint32_t{});
  if (dtype == DataType::U64) visit(std::uint64_t{});
}

/// Scales a sum; zero times infinity is zero.
template <typename Integer>
Integer scaled(std::int64_t sum, double prescale, const Scaling& scaling) {
  using Limits = std::numeric_limits<Integer>;
  const double value = static_cast<double>(sum) * prescale * scaling.factor / scaling.divisor;
  if (std::isnan(value)) return 0;
  return static_cast<Integer>(std::clamp<double>(value, Limits::min(), Limits::max()));
}

class ExactSum final : public SteppedOperation {
 public:
  ExactSum(Backend& host, std::shared_ptr<DeviceStreams> device, const AllreduceCall& call)
      : host_(host),
        device_(std::move(device)),
        call_(call),
        after_(call.place.after.begin(), call.place.after.end()),
        left_(total_elements(call.segments)),
        in_(call.segments),
        out_(call.segments) {
    begin(run());
  }

  // After a failure, the device may still copy.
  ~ExactSum() override {
    if (!after_.empty()) memory_.abandon();
  }

 private:
  Steps run() {
    co_await copied();
    while (left_ > 0) {
      copy_inputs();
      co_await copied();
      with_integer(call_.dtype, [this](auto type) { widen(type); });
      segment_ = {words_.data(), words_.data(), words_.size()};
      sum_ = host_.allreduce({.segments = {&segment_, 1}, .dtype = DataType::I64});
      co_await until_finished(*sum_);
      sum_.reset();
      with_integer(call_.dtype, [this](auto type) { narrow(type); });
      copy_results();
      co_await copied();
    }
    set_event(last_copy_);  // which has passed
  }

  /// Waits until the device has reached all of `after_`.
  Steps copied() {
    co_await until([this] {
      return std::ranges::all_of(after_, [](const auto& event) { return event->passed(); });
    });
    after_.clear();
  }

  void copy_inputs() {
    const std::size_t width = size_of(call_.dtype);
    count_ = std::min(left_, kChunk);
    left_ -= count_;
    elements_ = memory_.reserve(count_ * width);
    std::byte* position = elements_;
    in_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      if (segment.input == nullptr) {
        std::memset(position, 0, count * width);
      } else {
        copy(position, advanced(segment.input, offset * width), count * width);
      }
      position += count * width;
    });
  }

  void copy_results() {
    const std::size_t width = size_of(call_.dtype);
    const std::byte* position = elements_;
    out_.advance(count_, [&](const Segment& segment, std::size_t offset, std::size_t count) {
      if (segment.output != nullptr) {
        copy(advanced(segment.output, offset * width), position, count * width);
      }
      position += count * width;
    });
  }

  void copy(void* to, const void* from, std::size_t bytes) {
    if (!device_) {
      std::memcpy(to, from, bytes);
    } else {
      last_copy_ = device_->copy(call_.place.device.index, to, from, bytes);
      after_.push_back(last_copy_);
    }
  }

  /// Widens elements to words; the lower halves lie behind all upper ones.
  template <typename Integer>
  void widen(Integer value) {
    words_.resize(count_ * words_of(call_.dtype));
    for (std::size_t i = 0; i < count_; ++i) {
      std::memcpy(&value, elements_ + i * sizeof value, sizeof value);
      if constexpr (sizeof value == 8) {
        words_[i] = static_cast<std::int64_t>(value >> 32);
        words_[count_ + i] = static_cast<std::int64_t>(value & 0xffffffff);
      } else {
        words_[i] = value;
      }
    }
  }

  template <typename Integer>
  void narrow(Integer value) {
    const auto ranks = static_cast<std::int64_t>(call_.final.divisor);
    const bool divides_only = call_.prescale == 1.0 && call_.final.factor == 1.0;
    for (std::size_t i = 0; i < count_; ++i) {
      if constexpr (sizeof value == 8) {  // check_request() refuses factors
        const Int128 upper = words_[i];
        value = static_cast<Integer>((upper * (Int128{1} << 32) + words_[count_ + i]) / ranks);
      } else if (divides_only) {
        value = static_cast<Integer>(words_[i] / ranks);
      } else {
        value = scaled<Integer>(words_[i], call_.prescale, call_.final);
      }
      std::memcpy(elements_ + i * sizeof value, &value, sizeof value);
    }
  }

  Backend& host_;
  const std::shared_ptr<DeviceStreams> device_;
  const AllreduceCall call_;
  std::vector<std::shared_ptr<const DeviceEvent>> after_;  ///< copies in progress on the device
  std::size_t left_;                                       ///< elements that are not begun yet
  SegmentCursor in_;
  SegmentCursor out_;
  std::size_t count_ = 0;  ///< elements of the chunk in progress
  FusionBuffer memory_{kChunk * sizeof(std::int64_t)};
  std::byte* elements_ = nullptr;    ///< of the chunk, replaced by their results
  std::vector<std::int64_t> words_;  ///< of the chunk
  Segment segment_;                  ///< all words
  std::shared_ptr<const DeviceEvent> last_copy_;
  std::unique_ptr<Operation> sum_;  ///< destroyed before the memory that it works on
};

}  // namespace

std::unique_ptr<Operation> exact_sum(Backend& host, std::shared_ptr<DeviceStreams> device,
                                     const AllreduceCall& call) {
  return std::make_unique<ExactSum>(host, std::move(device), call);
}

}  // namespace ronde

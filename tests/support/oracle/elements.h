// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "ronde/collective.h"
#include "ronde/dtype.h"

namespace ronde::test {

/// Dense elements of one type in host memory, read and written as numbers. Knows nothing of
/// Ronde's own conversions.
class Elements {
 public:
  Elements(DataType dtype, std::size_t count);

  DataType dtype() const noexcept { return dtype_; }
  std::size_t count() const noexcept { return bytes_.size() / size_of(dtype_); }
  void* data() noexcept { return bytes_.data(); }
  const void* data() const noexcept { return bytes_.data(); }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// Of `count` elements from `begin` on.
  std::span<const std::byte> bytes(std::size_t begin, std::size_t count) const {
    return bytes().subspan(begin * size_of(dtype_), count * size_of(dtype_));
  }

  /// The same bytes as elements of another type: of complex numbers the parts, and back.
  Elements as(DataType dtype) const {
    Elements other = *this;
    other.dtype_ = dtype;
    return other;
  }

  /// Of a floating type.
  double number(std::size_t index) const;
  std::vector<double> numbers() const;
  /// Of an integer type; a bool is 0 or 1.
  std::int64_t integer(std::size_t index) const;

  /// Halves: only numbers with at most 8 significant bits, and f16's normal range.
  void set_number(std::size_t index, double value);
  /// Wraps as a cast does. A bool takes the byte as it is: 2 is also true.
  void set_integer(std::size_t index, std::int64_t value);

  friend bool operator==(const Elements&, const Elements&) = default;

 private:
  const std::byte* at(std::size_t index) const { return bytes_.data() + index * size_of(dtype_); }
  std::byte* at(std::size_t index) { return bytes_.data() + index * size_of(dtype_); }

  DataType dtype_;
  std::vector<std::byte> bytes_;
};

/// What rank `rank` puts into an operation: any value of the type for integers, of which the first
/// elements are the largest on all ranks, the least, and either (sums wrap); numbers whose products
/// neither overflow nor vanish for floats.
Elements make_input(DataType dtype, ReduceOp op, std::size_t count, int rank, std::uint64_t seed);

/// What ranks 0 to `ranks` - 1 put in, one after the other.
std::vector<Elements> make_inputs(DataType dtype, ReduceOp op, std::size_t count, int ranks,
                                  std::uint64_t seed);

/// Any bytes.
Elements make_bytes(DataType dtype, std::size_t count, int rank, std::uint64_t seed);

}  // namespace ronde::test

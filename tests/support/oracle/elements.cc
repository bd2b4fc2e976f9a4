// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle/elements.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "tests/support/oracle/oracle.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {
namespace {

// The splitmix64 generator (Steele, Lea, Flood 2014), at position `index` of stream `key`.
std::uint64_t random_bits(std::uint64_t key, std::uint64_t index) {
  std::uint64_t z = key + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

std::uint64_t stream(int rank, std::uint64_t seed) {
  return random_bits(seed, static_cast<std::uint64_t>(rank) + 1000);
}

double random_number(DataType dtype, ReduceOp op, std::uint64_t bits) {
  const double sign = (bits & 1) != 0 ? -1.0 : 1.0;
  const auto high = static_cast<double>(bits >> 11) * 0x1p-53;  // [0, 1)
  if (is_half(dtype)) {
    const auto significand = static_cast<double>(bits >> 57) + 64.0;  // 64 to 191: 8 bits
    const int exponent = op == ReduceOp::Product ? -7 : -7 - static_cast<int>((bits >> 8) % 4);
    return sign * std::ldexp(significand, exponent);
  }
  const double value = op == ReduceOp::Product ? sign * (0.5 + high) : sign * 100.0 * high;
  return dtype == DataType::F32 ? static_cast<double>(static_cast<float>(value)) : value;
}

}  // namespace

Elements::Elements(DataType dtype, std::size_t count)
    : dtype_(dtype), bytes_(count * size_of(dtype)) {}

double Elements::number(std::size_t index) const {
  return read_number(dtype_, at(index));
}

std::vector<double> Elements::numbers() const {
  std::vector<double> all(count());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = number(i);
  return all;
}

std::int64_t Elements::integer(std::size_t index) const {
  std::int64_t result = 0;
  with_storage(dtype_, [&](auto value) {
    std::memcpy(&value, at(index), sizeof value);
    result = static_cast<std::int64_t>(value);
  });
  return dtype_ == DataType::Bool && result != 0 ? 1 : result;
}

void Elements::set_number(std::size_t index, double value) {
  write_number(dtype_, at(index), value);
  if (is_half(dtype_) && !std::isnan(value) && number(index) != value) {
    throw std::logic_error("not exact in a half type: " + std::to_string(value));
  }
}

void Elements::set_integer(std::size_t index, std::int64_t value) {
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(at(index), &value, size_of(dtype_));
}

Elements make_input(DataType dtype, ReduceOp op, std::size_t count, int rank, std::uint64_t seed) {
  if (is_complex(dtype)) {
    return make_input(real_type(dtype), op, 2 * count, rank, seed).as(dtype);
  }
  Elements elements(dtype, count);
  const std::uint64_t key = stream(rank, seed);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random_bits(key, i);
    if (is_floating(dtype)) {
      elements.set_number(i, random_number(dtype, op, bits));
    } else if (dtype == DataType::Bool) {
      elements.set_integer(i, static_cast<std::int64_t>(bits % 3));
    } else if (i < 3) {
      const bool is_least = i == 1 || (i == 2 && rank % 2 == 1);
      const int free_bits = 64 - 8 * static_cast<int>(size_of(dtype));
      const std::int64_t least = std::numeric_limits<std::int64_t>::min() >> free_bits;
      elements.set_integer(i, is_unsigned(dtype) ? (is_least ? 0 : -1) : is_least ? least : ~least);
    } else {
      elements.set_integer(i, std::bit_cast<std::int64_t>(bits));
    }
  }
  return elements;
}

std::vector<Elements> make_inputs(DataType dtype, ReduceOp op, std::size_t count, int ranks,
                                  std::uint64_t seed) {
  std::vector<Elements> inputs;
  for (int rank = 0; rank < ranks; ++rank)
    inputs.push_back(make_input(dtype, op, count, rank, seed));
  return inputs;
}

Elements make_bytes(DataType dtype, std::size_t count, int rank, std::uint64_t seed) {
  if (is_complex(dtype)) return make_bytes(real_type(dtype), 2 * count, rank, seed).as(dtype);
  Elements elements(dtype, count);
  const std::uint64_t key = stream(rank, seed);
  for (std::size_t i = 0; i < count; ++i) {
    elements.set_integer(i, std::bit_cast<std::int64_t>(random_bits(key, i)));
  }
  return elements;
}

}  // namespace ronde::test

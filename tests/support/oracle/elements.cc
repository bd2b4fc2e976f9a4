// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace ronde::test {
namespace {

template <typename Value>
Value load(const std::byte* from) {
  Value value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename Value>
void store(std::byte* to, Value value) {
  std::memcpy(to, &value, sizeof value);
}

// Formats of the halves, by their fields.
struct HalfFormat {
  int fraction_bits;
  int exponent_bits;
};

HalfFormat format_of(DataType dtype) {
  return dtype == DataType::F16 ? HalfFormat{10, 5} : HalfFormat{7, 8};
}

double decode_half(std::uint16_t bits, HalfFormat format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent = (bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const int significand = exponent == 0 ? fraction : fraction + (1 << format.fraction_bits);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - format.fraction_bits);
}

std::uint16_t encode_half(double value, HalfFormat format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int most = (1 << format.exponent_bits) - 1;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>((most << format.fraction_bits) | 1);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | (most << format.fraction_bits));
  if (value == 0.0) return static_cast<std::uint16_t>(sign);
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent) * 2.0 - 1.0;  // [0, 1)
  const double scaled = std::ldexp(fraction, format.fraction_bits);
  const int field = exponent - 1 + bias;
  if (scaled != std::trunc(scaled) || field <= 0 || field >= most) {
    throw std::logic_error("not exact in a half type: " + std::to_string(value));
  }
  return static_cast<std::uint16_t>(sign | (field << format.fraction_bits) |
                                    static_cast<int>(scaled));
}

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
  switch (dtype_) {
    case DataType::F16:
    case DataType::BF16:
      return decode_half(load<std::uint16_t>(at(index)), format_of(dtype_));
    case DataType::F32:
      return static_cast<double>(load<float>(at(index)));
    case DataType::F64:
      return load<double>(at(index));
    default:
      throw std::logic_error("not a floating type");
  }
}

std::vector<double> Elements::numbers() const {
  std::vector<double> all(count());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = number(i);
  return all;
}

std::int64_t Elements::integer(std::size_t index) const {
  switch (dtype_) {
    case DataType::U8:
      return load<std::uint8_t>(at(index));
    case DataType::I8:
      return load<std::int8_t>(at(index));
    case DataType::I16:
      return load<std::int16_t>(at(index));
    case DataType::I32:
      return load<std::int32_t>(at(index));
    case DataType::I64:
      return load<std::int64_t>(at(index));
    case DataType::Bool:
      return load<std::uint8_t>(at(index)) != 0 ? 1 : 0;
    default:
      throw std::logic_error("not an integer type");
  }
}

std::vector<std::int64_t> Elements::integers() const {
  std::vector<std::int64_t> all(count());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = integer(i);
  return all;
}

void Elements::set_number(std::size_t index, double value) {
  switch (dtype_) {
    case DataType::F16:
    case DataType::BF16:
      return store(at(index), encode_half(value, format_of(dtype_)));
    case DataType::F32:
      return store(at(index), static_cast<float>(value));
    case DataType::F64:
      return store(at(index), value);
    default:
      throw std::logic_error("not a floating type");
  }
}

void Elements::set_integer(std::size_t index, std::int64_t value) {
  // Little-endian or not: the low bytes are those of the narrower type's value.
  switch (size_of(dtype_)) {
    case 1:
      return store(at(index), static_cast<std::uint8_t>(value));
    case 2:
      return store(at(index), static_cast<std::uint16_t>(value));
    case 4:
      return store(at(index), static_cast<std::uint32_t>(value));
    default:
      return store(at(index), value);
  }
}

Elements make_input(DataType dtype, ReduceOp op, std::size_t count, int rank, std::uint64_t seed) {
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
      elements.set_integer(i, dtype == DataType::U8 ? (is_least ? 0 : 255)
                              : is_least            ? least
                                                    : ~least);
    } else {
      elements.set_integer(i, std::bit_cast<std::int64_t>(bits));
    }
  }
  return elements;
}

std::vector<Elements> make_inputs(DataType dtype, ReduceOp op, std::size_t count, int ranks,
                                  std::uint64_t seed) {
  std::vector<Elements> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(make_input(dtype, op, count, rank, seed));
  }
  return inputs;
}

Elements make_bytes(DataType dtype, std::size_t count, int rank, std::uint64_t seed) {
  Elements elements(dtype, count);
  const std::uint64_t key = stream(rank, seed);
  for (std::size_t i = 0; i < count; ++i) {
    elements.set_integer(i, std::bit_cast<std::int64_t>(random_bits(key, i)));
  }
  return elements;
}

}  // namespace ronde::test

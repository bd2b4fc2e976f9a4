// SPDX-License-Identifier: Apache-2.0
// Kernels::widen and Kernels::narrow against the definition of halves and roundings in double
// precision.
#include <catch2/catch.hpp>
#include <numeric>

#include "ronde/kernels.h"
#include "tests/core/kernels/placed.h"
#include "tests/support/oracle/half_rounding.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;

constexpr DataType kHalves[] = {DataType::F16, DataType::BF16};

/// What 16 bits mean, by the definition of the format alone.
double half_value(DataType half, std::uint32_t bits) {
  const int mantissa_bits = half == DataType::F16 ? 10 : 7;
  const int most_exponent = (1 << (15 - mantissa_bits)) - 1;  // of infinities and NaN
  const auto mantissa = static_cast<int>(bits & ((1U << mantissa_bits) - 1));
  const auto exponent = static_cast<int>((bits & 0x7fff) >> mantissa_bits);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int scale = (half == DataType::F16 ? -14 : -126) - mantissa_bits;
  if (exponent == most_exponent) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, scale);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, scale + exponent - 1);
}

/// Every number of the half type, the middle to the next one, and what lies next to both in single
/// and in double precision: a rounding to f32 on the way would make a tie of the latter.
std::vector<double> doubles_around_halves(DataType half) {
  std::vector<double> all = {HUGE_VAL, -HUGE_VAL, std::nan(""), -std::nan(""), 1e300,   -1e300,
                             5e-324,   -5e-324,   65504.0,      65519.999,     65520.0, 0x1.ffp127,
                             0x1p128,  -0x1p128,  0x1p-150,     0x1.8p-150};
  // Where the first infinity begins, and the floats next to it.
  for (const double value :
       {0x1.ffdffep15, 0x1.ffep15, 0x1.ffe002p15, 0x1.fefffep127, 0x1.ffp127, 0x1.ff0002p127}) {
    all.insert(all.end(), {value, -value});
  }
  for (std::uint32_t bits = 0; bits < 0xffff; ++bits) {
    const double low = half_value(half, bits);
    for (const double value : {low, low + (half_value(half, bits + 1) - low) / 2}) {
      const auto single = static_cast<float>(value);
      all.insert(all.end(),
                 {std::nextafter(value, -HUGE_VAL), value, std::nextafter(value, HUGE_VAL),
                  value * (1 + 0x1p-26), std::nextafterf(single, -HUGE_VALF),
                  std::nextafterf(single, HUGE_VALF)});
    }
  }
  return all;
}

/// In the precision of the type. Volatile: no compiler may fuse it with what follows.
double scaled(DataType full, double value, const Scaling& scaling) {
  if (full == DataType::F32) {
    volatile float product = static_cast<float>(value) * static_cast<float>(scaling.factor);
    return product / static_cast<float>(scaling.divisor);
  }
  volatile double product = value * scaling.factor;
  return product / scaling.divisor;
}

/// NaN is the one quiet NaN; everything else is that number, zeros with their sign.
bool is_right(const TensorValues& result, std::size_t index, double expected) {
  const double got = result.get(index);
  if (!std::isnan(expected)) {
    return got == expected && std::signbit(got) == std::signbit(expected);
  }
  const std::size_t size = size_of(result.dtype());
  TensorValues nan(result.dtype(), 1);
  nan.set(0, std::numeric_limits<double>::quiet_NaN());
  return std::memcmp(static_cast<const std::byte*>(result.data()) + index * size, nan.data(),
                     size) == 0;
}

/// With every set of kernels.
template <typename Visit>
void for_each_conversion(Visit visit) {
  for (const Kernels* kernels : available_kernels()) {
    for (const DataType half : kHalves) {
      for (const DataType full : {DataType::F32, DataType::F64}) {
        for (const Store store : {Store::Regular, Store::Streaming}) {
          CAPTURE(kernels->name, to_string(half), to_string(full), store);
          visit(*kernels, half, full, store);
        }
      }
    }
  }
}

TEST_CASE("every set of kernels narrows f64 with one rounding, and f32 as the oracle") {
  for_each_conversion([](const Kernels& kernels, DataType half, DataType full, Store store) {
    const TensorValues input = TensorValues(full, doubles_around_halves(half));
    for (const Scaling scaling : {Scaling{}, Scaling{0.3, 1.0}, Scaling{-2.0, 7.0}}) {
      TensorValues result(half, input.count());
      kernels.narrow(result.data(), input.data(), input.count(), {half, full, scaling}, store);
      for (std::size_t i = 0; i < input.count(); ++i) {
        const double value = scaled(full, input.get(i), scaling);
        if (is_right(result, i, rounded_to(half, value))) continue;
        CAPTURE(scaling.factor, input.get(i), result.get(i));
        FAIL("a number is not rounded to the nearest half");
      }
    }
  });
}

TEST_CASE("every set of kernels narrows a NaN of any bits to the one quiet NaN") {
  std::vector<float> floats;
  for (int bit = 0; bit < 23; ++bit) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      floats.push_back(std::bit_cast<float>(sign | 0x7f800000U | std::uint32_t{1} << bit));
    }
  }
  for (const DataType half : kHalves) {
    TensorValues quiet(half, floats.size());
    quiet.fill(std::numeric_limits<double>::quiet_NaN());
    for (const Kernels* kernels : available_kernels()) {
      CAPTURE(kernels->name, to_string(half));
      TensorValues result(half, floats.size());
      kernels->narrow(result.data(), floats.data(), floats.size(), {.half = half}, Store::Regular);
      CHECK(result == quiet);
    }
  }
}

TEST_CASE("every set of kernels widens all halves to f32 and f64 exactly, or scaled in these") {
  std::vector<std::uint16_t> all(0x10000);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  for_each_conversion([&](const Kernels& kernels, DataType half, DataType full, Store store) {
    for (const Scaling scaling : {Scaling{}, Scaling{0.3, 7.0}}) {
      TensorValues result(full, all.size());
      kernels.widen(result.data(), all.data(), all.size(), {half, full, scaling}, store);
      const bool right = std::ranges::all_of(all, [&](std::uint16_t bits) {
        return is_right(result, bits, scaled(full, half_value(half, bits), scaling));
      });
      CAPTURE(scaling.factor);
      CHECK(right);
    }
  });
}

void check_places(const Kernels& kernels, const Conversion& conversion, std::size_t count,
                  std::size_t offset, Store store) {
  const std::size_t half_bytes = count * size_of(conversion.half);
  const std::size_t full_bytes = count * size_of(conversion.full);
  TensorValues numbers(conversion.full, count);
  TensorValues narrow(conversion.half, count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers.set(i, static_cast<double>(i % 200) - 100.0);
    narrow.set(i, numbers.get(i));
  }
  Placed input(full_bytes, 63 - offset);
  Placed halves(half_bytes, offset);
  Placed output(full_bytes, offset);
  input.set(numbers.data(), full_bytes);
  kernels.narrow(halves.data(), input.data(), count, conversion, store);
  kernels.widen(output.data(), halves.data(), count, conversion, store);
  CHECK(input.holds(numbers.data(), full_bytes));
  CHECK(halves.holds(narrow.data(), half_bytes));
  CHECK(output.holds(numbers.data(), full_bytes));
}

TEST_CASE("every set of kernels converts any count, wherever it lies") {
  for_each_conversion([](const Kernels& kernels, DataType half, DataType full, Store store) {
    for (const std::size_t count : {0, 1, 2, 3, 7, 15, 16, 17, 33, 63, 64, 65, 130, 257}) {
      for (const std::size_t offset : {0, 1, 2, 8, 33, 62}) {
        CAPTURE(count, offset);
        check_places(kernels, {half, full, {}}, count, offset, store);
      }
    }
  });
}

}  // namespace

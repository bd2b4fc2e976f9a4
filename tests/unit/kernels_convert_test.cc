// SPDX-License-Identifier: Apache-2.0
// Kernels::widen and Kernels::narrow against roundings in double precision.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ronde/kernels.h"
#include "tests/support/half_rounding.h"
#include "tests/support/requests.h"
#include "tests/unit/placed.h"

namespace {

using namespace ronde;
using ronde::test::Placed;
using ronde::test::rounded_to;
using ronde::test::TensorValues;

constexpr DataType kHalves[] = {DataType::F16, DataType::BF16};
constexpr DataType kFulls[] = {DataType::F32, DataType::F64};
constexpr Store kStores[] = {Store::Regular, Store::Streaming};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> numbers_of(DataType half) {
  TensorValues elements(half, 0x10000);
  for (std::size_t i = 0; i < elements.count(); ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(static_cast<std::byte*>(elements.data()) + 2 * i, &bits, sizeof bits);
  }
  std::vector<double> numbers;
  for (std::size_t i = 0; i < elements.count(); ++i) numbers.push_back(elements.get(i));
  return numbers;
}

/// Every number of the half type, the middle to the next one, and what lies next to both in single
/// and in double precision: a rounding to f32 on the way would make a tie of the latter.
std::vector<double> doubles_around_boundaries(DataType half) {
  const std::vector<double> numbers = numbers_of(half);
  std::vector<double> all = {
      kInfinity, -kInfinity, std::nan(""), -std::nan(""), 1e300,   -1e300,   5e-324,   -5e-324,
      65504.0,   65519.999,  65520.0,      0x1.ffp127,    0x1p128, -0x1p128, 0x1p-150, 0x1.8p-150};
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    const double middle = numbers[i] + (numbers[i + 1] - numbers[i]) / 2;
    for (const double value : {numbers[i], middle}) {
      const auto single = static_cast<float>(value);
      all.insert(all.end(),
                 {std::nextafter(value, -kInfinity), value, std::nextafter(value, kInfinity),
                  value * (1 + 0x1p-26), std::nextafterf(single, -HUGE_VALF),
                  std::nextafterf(single, HUGE_VALF)});
    }
  }
  return all;
}

TensorValues elements_of(DataType dtype, const std::vector<double>& numbers) {
  TensorValues elements(dtype, numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) elements.set(i, numbers[i]);
  return elements;
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

void check_narrow(const TensorValues& input, const Conversion& conversion) {
  for (const Kernels* kernels : available_kernels()) {
    for (const Store store : kStores) {
      TensorValues result(conversion.half, input.count());
      kernels->narrow(result.data(), input.data(), input.count(), conversion, store);
      for (std::size_t i = 0; i < input.count(); ++i) {
        const double value = scaled(conversion.full, input.get(i), conversion.scaling);
        if (is_right(result, i, rounded_to(conversion.half, value))) continue;
        CAPTURE(kernels->name, to_string(conversion.half), to_string(conversion.full), store,
                conversion.scaling.factor, input.get(i), result.get(i));
        FAIL("a number is not rounded to the nearest half");
      }
    }
  }
}

TEST_CASE("every set of kernels narrows f64 with one rounding, and f32 as the oracle") {
  for (const DataType half : kHalves) {
    const std::vector<double> numbers = doubles_around_boundaries(half);
    for (const DataType full : kFulls) {
      const TensorValues input = elements_of(full, numbers);
      for (const Scaling scaling : {Scaling{}, Scaling{0.3, 1.0}, Scaling{-2.0, 7.0}}) {
        check_narrow(input, {half, full, scaling});
      }
    }
  }
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
  for (const DataType half : kHalves) {
    const std::vector<double> numbers = numbers_of(half);
    const TensorValues input = elements_of(half, numbers);
    for (const DataType full : kFulls) {
      for (const Scaling scaling : {Scaling{}, Scaling{0.3, 7.0}}) {
        for (const Kernels* kernels : available_kernels()) {
          for (const Store store : kStores) {
            CAPTURE(kernels->name, to_string(half), to_string(full), store, scaling.factor);
            TensorValues result(full, input.count());
            kernels->widen(result.data(), input.data(), input.count(), {half, full, scaling},
                           store);
            bool right = true;
            for (std::size_t i = 0; i < input.count(); ++i) {
              right = right && is_right(result, i, scaled(full, numbers[i], scaling));
            }
            CHECK(right);
          }
        }
      }
    }
  }
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
  for (const Kernels* kernels : available_kernels()) {
    for (const DataType half : kHalves) {
      for (const DataType full : kFulls) {
        for (const Store store : kStores) {
          for (const std::size_t count : {0, 1, 2, 3, 7, 15, 16, 17, 33, 63, 64, 65, 130, 257}) {
            for (const std::size_t offset : {0, 1, 2, 8, 33, 62}) {
              CAPTURE(kernels->name, to_string(half), to_string(full), store, count, offset);
              check_places(*kernels, {half, full, {}}, count, offset, store);
            }
          }
        }
      }
    }
  }
}

}  // namespace

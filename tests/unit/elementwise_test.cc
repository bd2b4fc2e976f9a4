// SPDX-License-Identifier: Apache-2.0
#include "core/src/elementwise.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "tests/support/case_table.h"
#include "tests/support/requests.h"

namespace {

using namespace ronde;
using ronde::test::add_case;
using ronde::test::TensorValues;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> samples(DataType dtype) {
  if (dtype == DataType::Bool) return {0, 1, 1, 0, 1};
  if (dtype == DataType::U8) return {0, 1, 7, 100, 255};
  if (dtype == DataType::I8) return {0, 1, -7, 100, -128, 127};
  return {0, 1, -7, 96, -112, 3};
}

TensorValues elements_of(DataType dtype, const std::vector<double>& values) {
  TensorValues elements(dtype, values.size());
  for (std::size_t i = 0; i < values.size(); ++i) elements.set(i, values[i]);
  return elements;
}

/// What scaling makes of one value, from the documentation alone.
double expected_scaled(DataType dtype, double value, Scaling scaling) {
  if (dtype == DataType::Bool) return value;
  const double product = value * scaling.factor / scaling.divisor;
  if (is_floating(dtype)) return product;
  double low = 0;
  double high = 0;
  test::with_storage(dtype, [&](auto storage) {
    low = static_cast<double>(std::numeric_limits<decltype(storage)>::min());
    high = static_cast<double>(std::numeric_limits<decltype(storage)>::max());
  });
  return std::min(std::max(std::trunc(product), low), high);
}

TensorValues packed(const TensorValues& input, Scaling scaling, bool widen) {
  TensorValues output(packed_dtype(input.dtype(), widen), input.count());
  pack_elements(output.data(), input.data(), input.count(), input.dtype(), scaling, widen);
  return output;
}

TensorValues unpacked(const TensorValues& wire, DataType dtype, Scaling scaling, bool widen) {
  TensorValues output(dtype, wire.count());
  unpack_elements(output.data(), wire.data(), wire.count(), dtype, scaling, widen);
  return output;
}

void check_dtype(DataType dtype, bool widen) {
  const std::vector<double> values = samples(dtype);
  const TensorValues input = elements_of(dtype, values);
  CHECK(unpacked(packed(input, {}, widen), dtype, {}, widen) == input);
  for (const Scaling scaling : {Scaling{0.5, 1.0}, Scaling{-1.0, 1.0}, Scaling{1.0, 3.0},
                                Scaling{500.0, 1.0}, Scaling{2.0, 4.0}, Scaling{0.0, 1.0}}) {
    const TensorValues scaled = packed(input, scaling, widen);
    const TensorValues finished = unpacked(packed(input, {}, widen), dtype, scaling, widen);
    for (std::size_t i = 0; i < values.size(); ++i) {
      CAPTURE(to_string(dtype), values[i], scaling.factor, scaling.divisor);
      const double expected = expected_scaled(dtype, values[i], scaling);
      const double tolerance = is_floating(dtype) ? std::abs(expected) * 0x1p-8 : 0.0;
      CHECK(std::abs(scaled.get(i) - expected) <= tolerance);
      CHECK(std::abs(finished.get(i) - expected) <= tolerance);
    }
  }
}

const bool registered = [] {
  for (const DataType dtype : kAllDataTypes) {
    add_case("elements of " + std::string(to_string(dtype)) + " are packed, scaled and unpacked",
             "", [dtype] {
               check_dtype(dtype, true);
               check_dtype(dtype, false);
             });
  }
  return true;
}();

template <typename Number>
Number scaled_once(DataType dtype, Number value, Scaling scaling) {
  Number packed_value{};
  pack_elements(&packed_value, &value, 1, dtype, scaling, true);
  Number unpacked_value{};
  unpack_elements(&unpacked_value, &value, 1, dtype, scaling, true);
  CHECK(packed_value == unpacked_value);
  return packed_value;
}

}  // namespace

TEST_CASE("an average of equal integers is that integer, whatever the number of ranks") {
  // 49 * (1 / 49) is less than one: this is why a divisor is kept apart.
  for (int ranks = 1; ranks < 300; ++ranks) {
    const auto divisor = static_cast<double>(ranks);
    CHECK(scaled_once<std::int32_t>(DataType::I32, ranks, {1.0, divisor}) == 1);
    CHECK(scaled_once<std::int32_t>(DataType::I32, -3 * ranks, {1.0, divisor}) == -3);
  }
}

TEST_CASE("integers are clamped to their range, and zero stays zero") {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  CHECK(scaled_once<std::int64_t>(DataType::I64, kMost, {2, 1}) == kMost);
  CHECK(scaled_once<std::int64_t>(DataType::I64, kLeast, {-1, 1}) == kMost);
  CHECK(scaled_once<std::int8_t>(DataType::I8, -128, {1.004, 1}) == -128);
  CHECK(scaled_once<std::int32_t>(DataType::I32, 0, {kInfinity, 1}) == 0);
}

TEST_CASE("large integers pass through the identity untouched") {
  // Not representable in double: a scaling by one must not be computed.
  const std::int64_t value = (std::int64_t{1} << 62) + 1;
  CHECK(scaled_once<std::int64_t>(DataType::I64, value, {}) == value);
}

TEST_CASE("bools become zero or one and are never scaled") {
  const std::vector<std::uint8_t> input = {0, 1, 2, 255};
  std::vector<std::uint8_t> output(4, 9);
  pack_elements(output.data(), input.data(), 4, DataType::Bool, {0.0, 1.0}, true);
  CHECK(output == std::vector<std::uint8_t>{0, 1, 1, 1});
  unpack_elements(output.data(), input.data(), 4, DataType::Bool, {0.0, 1.0}, true);
  CHECK(output == input);
}

TEST_CASE("any NaN is unpacked as the one quiet NaN, scaled or not, widened or not") {
  const std::pair<DataType, std::uint64_t> rows[] = {{DataType::F16, 0xfd01},
                                                     {DataType::BF16, 0xff85},
                                                     {DataType::F32, 0x7f812345},
                                                     {DataType::F32, 0xff812345},
                                                     {DataType::F64, 0x7ff0123456789abc},
                                                     {DataType::F64, 0xfff0123456789abc}};
  for (const auto& [dtype, bits] : rows) {
    TensorValues odd(dtype, 1), quiet(dtype, 1);
    std::memcpy(odd.data(), &bits, size_of(dtype));
    quiet.fill(std::numeric_limits<double>::quiet_NaN());
    for (const Scaling scaling : {Scaling{}, Scaling{2.0, 3.0}}) {
      CHECK(unpacked(odd, dtype, scaling, false) == quiet);
      CHECK(unpacked(packed(odd, {}, true), dtype, scaling, true) == quiet);
    }
  }
}

TEST_CASE("neutral elements are of the packed type") {
  const auto neutral = [](DataType dtype, ReduceOp op, bool widen) {
    TensorValues values(packed_dtype(dtype, widen), 2);
    fill_neutral(values.data(), 2, dtype, op, widen);
    CHECK(values.get(0) == values.get(1));
    return values.get(1);
  };
  for (const bool widen : {true, false}) {
    CHECK(neutral(DataType::F16, ReduceOp::Min, widen) == kInfinity);
    CHECK(neutral(DataType::BF16, ReduceOp::Max, widen) == -kInfinity);
    CHECK(neutral(DataType::F64, ReduceOp::Product, widen) == 1);
    CHECK(neutral(DataType::U8, ReduceOp::Average, widen) == 0);
    CHECK(neutral(DataType::I8, ReduceOp::Max, widen) == -128);
    CHECK(neutral(DataType::Bool, ReduceOp::Min, widen) == 1);
  }
}

TEST_CASE("no elements need no memory") {
  for (const DataType dtype : kAllDataTypes) {
    pack_elements(nullptr, nullptr, 0, dtype, {2.0, 1.0}, true);
    unpack_elements(nullptr, nullptr, 0, dtype, {2.0, 1.0}, true);
    fill_neutral(nullptr, 0, dtype, ReduceOp::Sum, true);
  }
  CHECK(packed_dtype(DataType::F16, true) == DataType::F32);
  CHECK(packed_dtype(DataType::F16, false) == DataType::F16);
  CHECK(packed_dtype(DataType::I16, true) == DataType::I16);
}

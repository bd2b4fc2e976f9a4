// SPDX-License-Identifier: Apache-2.0
#include "core/src/elementwise.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
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

/// Sum, minimum, ... of two values, of which bools are 0 or 1.
double combined(DataType dtype, ReduceOp op, double a, double b) {
  const bool is_truth = dtype == DataType::Bool;
  if (op == ReduceOp::Product) return a * b;
  if (op == ReduceOp::Min) return std::min(a, b);
  if (op == ReduceOp::Max || is_truth) return std::max(a, b);
  return a + b;
}

/// The neutral element leaves every sample as it is.
void check_neutral(DataType dtype, ReduceOp op, bool widen) {
  std::vector<double> values = samples(dtype);
  if (is_floating(dtype)) values.insert(values.end(), {kInfinity, -kInfinity});
  TensorValues neutral(packed_dtype(dtype, widen), values.size());
  fill_neutral(neutral.data(), values.size(), dtype, op, widen);
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(to_string(dtype), to_string(op), values[i], neutral.get(i));
    CHECK(combined(dtype, op, neutral.get(i), values[i]) == values[i]);
  }
}

const bool registered = [] {
  for (const DataType dtype : kAllDataTypes) {
    const std::string name(to_string(dtype));
    add_case("elements of " + name + " are packed, scaled and unpacked", "", [dtype] {
      check_dtype(dtype, true);
      check_dtype(dtype, false);
    });
    for (const ReduceOp op : kElementwiseOps) {
      if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
      const std::string title =
          "the neutral element of " + std::string(to_string(op)) + " on " + name;
      add_case(title, "", [dtype, op] {
        check_neutral(dtype, op, true);
        check_neutral(dtype, op, false);
      });
    }
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

TEST_CASE("integers are truncated toward zero on both sides of it") {
  CHECK(scaled_once<std::int32_t>(DataType::I32, 7, {0.5, 1}) == 3);
  CHECK(scaled_once<std::int32_t>(DataType::I32, -7, {0.5, 1}) == -3);
  CHECK(scaled_once<std::int32_t>(DataType::I32, -1, {0.99, 1}) == 0);
}

TEST_CASE("an average of equal integers is that integer, whatever the number of ranks") {
  // 49 * (1 / 49) is less than one: this is why a divisor is kept apart.
  for (int ranks = 1; ranks < 300; ++ranks) {
    const auto divisor = static_cast<double>(ranks);
    CHECK(scaled_once<std::int32_t>(DataType::I32, ranks, {1.0, divisor}) == 1);
    CHECK(scaled_once<std::int32_t>(DataType::I32, -3 * ranks, {1.0, divisor}) == -3);
  }
}

TEST_CASE("integers are clamped to their range") {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  CHECK(scaled_once<std::int64_t>(DataType::I64, kMost, {2, 1}) == kMost);
  CHECK(scaled_once<std::int64_t>(DataType::I64, kLeast, {2, 1}) == kLeast);
  CHECK(scaled_once<std::int64_t>(DataType::I64, kLeast, {-1, 1}) == kMost);
  CHECK(scaled_once<std::uint8_t>(DataType::U8, 200, {2, 1}) == 255);
  CHECK(scaled_once<std::uint8_t>(DataType::U8, 200, {-2, 1}) == 0);
  CHECK(scaled_once<std::int8_t>(DataType::I8, -100, {2, 1}) == -128);
  CHECK(scaled_once<std::int8_t>(DataType::I8, -128, {1.004, 1}) == -128);
}

TEST_CASE("an infinite scale clamps integers and leaves zero alone") {
  CHECK(scaled_once<std::int32_t>(DataType::I32, 0, {kInfinity, 1}) == 0);
  CHECK(scaled_once<std::int32_t>(DataType::I32, 5, {kInfinity, 1}) ==
        std::numeric_limits<std::int32_t>::max());
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

TEST_CASE("any NaN is unpacked as the one quiet NaN") {
  const auto check = []<typename Number, typename Bits>(DataType dtype, Number, Bits odd) {
    const Bits canonical = std::bit_cast<Bits>(std::numeric_limits<Number>::quiet_NaN());
    Bits result{};
    for (const Bits sign : {Bits{0}, static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1))}) {
      const Bits input = odd | sign;
      unpack_elements(&result, &input, 1, dtype, {}, true);
      CHECK(result == canonical);
      unpack_elements(&result, &input, 1, dtype, {2.0, 3.0}, true);
      CHECK(result == canonical);
    }
  };
  check(DataType::F32, float{}, std::uint32_t{0x7f812345});
  check(DataType::F64, double{}, std::uint64_t{0x7ff0123456789abc});
}

TEST_CASE("any NaN of a half type is unpacked as the one quiet NaN, widened or not") {
  for (const auto& [dtype, odd, canonical] :
       {std::tuple{DataType::F16, 0xfd01, 0x7e00}, std::tuple{DataType::BF16, 0xff85, 0x7fc0}}) {
    const auto input = static_cast<std::uint16_t>(odd);
    float wide = 0;
    std::uint16_t result = 0;
    pack_elements(&wide, &input, 1, dtype, {}, true);
    unpack_elements(&result, &wide, 1, dtype, {}, true);
    CHECK(result == canonical);
    unpack_elements(&result, &input, 1, dtype, {}, false);
    CHECK(result == canonical);
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

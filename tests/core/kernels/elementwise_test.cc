// SPDX-License-Identifier: Apache-2.0
#include "core/src/kernels/elementwise.h"

#include <catch2/catch.hpp>
#include <limits>
#include <utility>

#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using ronde::test::TensorValues;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

}  // namespace

TEST_CASE("elements are packed, scaled on either way and unpacked, but integers never scaled") {
  struct Row {
    std::vector<DataType> dtypes;
    Scaling scaling;
    std::vector<double> values, scaled;
  };
  const std::vector<DataType> floats = {DataType::F16, DataType::BF16, DataType::F32,
                                        DataType::F64};
  const std::vector<DataType> integers = {DataType::I8, DataType::I16, DataType::I32,
                                          DataType::I64};
  const Row rows[] = {{floats, {0.5, 4.0}, {0, 1, -7, 96}, {0, 0.125, -0.875, 12}},
                      {floats, {-500.0, 1.0}, {1, -4}, {-500, 2000}},
                      {integers, {0.5, 3.0}, {7, -7, -1, 0}, {7, -7, -1, 0}},
                      {{DataType::Bool}, {0.0, 3.0}, {0, 1}, {0, 1}}};
  for (const Row& row : rows) {
    for (const DataType dtype : row.dtypes) {
      for (const bool widen : {true, false}) {
        CAPTURE(to_string(dtype), widen, row.scaling.factor);
        const TensorValues input = TensorValues(dtype, row.values);
        const TensorValues plain = packed(input, {}, widen);
        CHECK(plain == TensorValues(packed_dtype(dtype, widen), row.values));
        CHECK(unpacked(plain, dtype, {}, widen) == input);
        CHECK(packed(input, row.scaling, widen) == TensorValues(plain.dtype(), row.scaled));
        CHECK(unpacked(plain, dtype, row.scaling, widen) == TensorValues(dtype, row.scaled));
      }
    }
  }
}

TEST_CASE("bools become zero or one and are never scaled") {
  const std::vector<std::uint8_t> input = {0, 1, 2, 255};
  for (const Scaling scaling : {Scaling{}, Scaling{0.0, 1.0}}) {
    std::vector<std::uint8_t> output(4, 9);
    pack_elements(output.data(), input.data(), 4, DataType::Bool, scaling, true);
    CHECK(output == std::vector<std::uint8_t>{0, 1, 1, 1});
    unpack_elements(output.data(), input.data(), 4, DataType::Bool, scaling, true);
    CHECK(output == input);
  }
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

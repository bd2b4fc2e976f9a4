// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "ronde/collective.h"
#include "ronde/dtype.h"

namespace ronde::test {

/// What a test runs, on which ranks bring brought().
struct Case {
  Collective kind = Collective::Allreduce;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  int ranks = 1;
};

/// What `rank` brings in element `i`: exact in every type, so that most results are.
inline double brought(const Case& test, int rank, std::size_t i) {
  const int number = static_cast<int>(i) * 5 + rank * 3;
  if (test.dtype == DataType::Bool) return (number / 3) % 2;
  if (test.op == ReduceOp::Product) return number % 2 + 1;
  const int small = number % 11;
  return test.dtype == DataType::U8 ? small : small - 4;
}

inline double scaled(DataType dtype, double value, double factor) {
  if (dtype == DataType::Bool) return value;
  const double product = value * factor;
  if (is_floating(dtype)) return product;
  const double least = dtype == DataType::U8 ? 0 : -1e300;
  return std::max(std::trunc(product), least);
}

inline double combined(ReduceOp op, DataType dtype, double a, double b) {
  if (dtype == DataType::Bool) {
    const bool is_or = op == ReduceOp::Sum || op == ReduceOp::Max;
    return is_or ? std::max(a, b) : std::min(a, b);
  }
  switch (op) {
    case ReduceOp::Min:
      return std::min(a, b);
    case ReduceOp::Max:
      return std::max(a, b);
    case ReduceOp::Product:
      return a * b;
    case ReduceOp::Sum:
    case ReduceOp::Average:
    case ReduceOp::Adasum:  // not elementwise
      break;
  }
  return a + b;
}

inline double expected_reduction(const Case& test, std::size_t i, double prescale,
                                 double postscale) {
  double result = scaled(test.dtype, brought(test, 0, i), prescale);
  for (int rank = 1; rank < test.ranks; ++rank) {
    result =
        combined(test.op, test.dtype, result, scaled(test.dtype, brought(test, rank, i), prescale));
  }
  const double divisor = test.op == ReduceOp::Average ? test.ranks : 1;
  return scaled(test.dtype, result, postscale / divisor);
}

/// How far a result of rounded steps may be from the oracle.
inline double tolerance(DataType dtype, double expected) {
  const double size = std::abs(expected);
  switch (dtype) {
    case DataType::BF16:
      return size * 0x1p-8;
    case DataType::F16:
      return size * 0x1p-11;
    case DataType::F32:
      return size * 0x1p-22;
    case DataType::F64:
      return size * 0x1p-50;
    default:
      return 0;
  }
}

}  // namespace ronde::test

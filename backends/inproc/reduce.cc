// SPDX-License-Identifier: Apache-2.0
#include "backends/inproc/reduce.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ronde/error.h"

namespace ronde::inproc {
namespace {

template <typename Number>
Number wrapped_sum(Number a, Number b) {
  if constexpr (std::is_integral_v<Number>) {
    return static_cast<Number>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename Number>
Number wrapped_product(Number a, Number b) {
  if constexpr (std::is_integral_v<Number>) {
    return static_cast<Number>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

template <typename Number>
Number smaller(Number a, Number b) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
    if (a == b) return std::signbit(a) ? a : b;
  }
  return b < a ? b : a;
}

template <typename Number>
Number larger(Number a, Number b) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
}

template <typename Number>
void reduce_numbers(void* accumulator, const void* input, std::size_t count, ReduceOp op) {
  auto* out = static_cast<Number*>(accumulator);
  const auto* in = static_cast<const Number*>(input);
  const auto each = [&](auto combine) {
    for (std::size_t i = 0; i < count; ++i) out[i] = combine(out[i], in[i]);
  };
  switch (op) {
    case ReduceOp::Sum:
      return each(wrapped_sum<Number>);
    case ReduceOp::Product:
      return each(wrapped_product<Number>);
    case ReduceOp::Min:
      return each(smaller<Number>);
    case ReduceOp::Max:
      return each(larger<Number>);
    case ReduceOp::Average:
      break;
  }
  throw Error("an inproc backend was asked for an average, which is scaled outside of it");
}

/// "or" is the larger of two bools, "and" the smaller.
ReduceOp as_order(ReduceOp op) {
  if (op == ReduceOp::Sum) return ReduceOp::Max;
  if (op == ReduceOp::Product) return ReduceOp::Min;
  return op;
}

}  // namespace

void reduce_into(void* accumulator, const void* input, std::size_t count, DataType dtype,
                 ReduceOp op) {
  switch (dtype) {
    case DataType::U8:
      return reduce_numbers<std::uint8_t>(accumulator, input, count, op);
    case DataType::I8:
      return reduce_numbers<std::int8_t>(accumulator, input, count, op);
    case DataType::I16:
      return reduce_numbers<std::int16_t>(accumulator, input, count, op);
    case DataType::I32:
      return reduce_numbers<std::int32_t>(accumulator, input, count, op);
    case DataType::I64:
      return reduce_numbers<std::int64_t>(accumulator, input, count, op);
    case DataType::F32:
      return reduce_numbers<float>(accumulator, input, count, op);
    case DataType::F64:
      return reduce_numbers<double>(accumulator, input, count, op);
    case DataType::Bool:
      return reduce_numbers<std::uint8_t>(accumulator, input, count, as_order(op));
    case DataType::F16:
    case DataType::BF16:
      break;
  }
  throw Error("an inproc backend was given a half type, which is widened outside of it");
}

}  // namespace ronde::inproc

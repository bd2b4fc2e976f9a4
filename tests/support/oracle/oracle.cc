// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle/oracle.h"

#include <sstream>
#include <stdexcept>

#include "tests/support/oracle/adasum_oracle.h"
#include "tests/support/oracle/half_rounding.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {
namespace {

struct Approximate {
  double value;
  double tolerance;
};

bool is_unscaled(const Reduction& reduction) {
  return reduction.prescale == 1.0 && reduction.postscale == 1.0;
}

double combine(ReduceOp op, double a, double b) {
  if (!is_elementwise(op)) throw std::logic_error("adasum is not elementwise");
  if (op == ReduceOp::Product) return a * b;
  const bool adds = op == ReduceOp::Sum || op == ReduceOp::Average;
  if (adds || std::isnan(a) || std::isnan(b)) return a + b;
  return op == ReduceOp::Min ? std::min(a, b) : std::max(a, b);
}

/// Rounding of the result to the type itself.
double storing_error(DataType dtype, double value) {
  switch (dtype) {
    case DataType::F16:
      return std::max(std::fabs(value) * 0x1p-11, 0x1p-25);
    case DataType::BF16:
      return std::fabs(value) * 0x1p-8;
    case DataType::F32:
      return std::fabs(value) * 0x1p-24;
    default:
      return std::fabs(value) * 0x1p-53;
  }
}

Approximate reduce(const Reduction& reduction, const std::vector<double>& values) {
  const bool adds = reduction.op == ReduceOp::Sum || reduction.op == ReduceOp::Average;
  double result = values[0] * reduction.prescale;
  double magnitude = std::fabs(result);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double value = values[i] * reduction.prescale;
    result = combine(reduction.op, result, value);
    magnitude = adds ? magnitude + std::fabs(value) : std::fabs(result);
  }
  const double factor = reduction.op == ReduceOp::Average ? reduction.postscale / reduction.ranks
                                                          : reduction.postscale;
  const bool exact =
      is_unscaled(reduction) && (reduction.op == ReduceOp::Min || reduction.op == ReduceOp::Max);
  if (exact) return {result, 0.0};
  // Halves are reduced in f32. Each input is scaled and combined, then the result is scaled and
  // divided: two roundings a rank and three more. The oracle itself rounds as often, in double.
  const double unit = reduction.dtype == DataType::F64 ? 0x1p-52 : 0x1p-24;
  const double steps = 2.0 * static_cast<double>(values.size()) + 3.0;
  const double value = result * factor;
  return {value,
          steps * unit * magnitude * std::fabs(factor) + storing_error(reduction.dtype, value)};
}

/// What a rank sends: scaled in its own type, then rounded.
double on_the_wire(const Reduction& reduction, double value) {
  const double product = reduction.dtype == DataType::F32
                             ? static_cast<float>(value) * static_cast<float>(reduction.prescale)
                             : value * reduction.prescale;
  return rounded_to(*reduction.wire_dtype, product);
}

/// Of vectors of all ranks, one behind the other.
std::vector<Approximate> reduce_vectors(const Reduction& reduction,
                                        const std::vector<double>& inputs, std::size_t count) {
  std::vector<std::vector<double>> vectors(inputs.size() / count);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    vectors[i / count].push_back(reduction.wire_dtype ? on_the_wire(reduction, inputs[i])
                                                      : inputs[i] * reduction.prescale);
  }
  const Combined combined = adasum_of(vectors);
  const double error = adasum_error(vectors.size(), reduction.dtype == DataType::F64);
  const DataType stored = reduction.wire_dtype.value_or(reduction.dtype);
  std::vector<Approximate> results;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = combined.values[i] * reduction.postscale;
    const double magnitude = combined.magnitudes[i] * std::fabs(reduction.postscale);
    results.push_back({value, error * magnitude + 1.01 * storing_error(stored, value)});
  }
  return results;
}

/// In f32 and in the order of ranks.
Approximate reduce_on_the_wire(const Reduction& reduction, const std::vector<double>& values) {
  auto result = static_cast<float>(on_the_wire(reduction, values[0]));
  double magnitude = std::fabs(result);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double value = on_the_wire(reduction, values[i]);
    const bool adds = reduction.op == ReduceOp::Sum || reduction.op == ReduceOp::Average;
    // In double precision and then rounded, which for one operation on floats is the same.
    result = static_cast<float>(combine(reduction.op, result, value));
    magnitude = adds ? magnitude + std::fabs(value) : std::fabs(result);
  }
  result *= static_cast<float>(reduction.postscale);
  const int divisor = reduction.op == ReduceOp::Average ? reduction.ranks : 1;
  result /= static_cast<float>(divisor);
  const double expected = rounded_to(*reduction.wire_dtype, result);
  if (reduction.hosts == 1) return {expected, 0.0};
  const double rounding = *reduction.wire_dtype == DataType::F16 ? 0x1p-11 : 0x1p-8;
  const double of_hosts =
      rounding * (reduction.hosts + 1) * magnitude * std::fabs(reduction.postscale) / divisor;
  return {expected, of_hosts + storing_error(*reduction.wire_dtype, expected)};
}

std::int64_t wrapped(DataType dtype, std::uint64_t bits) {
  std::int64_t result = 0;
  with_storage(dtype, [&](auto value) {
    result = static_cast<std::int64_t>(static_cast<decltype(value)>(bits));
  });
  return result;
}

std::int64_t combine(const Reduction& reduction, std::int64_t a, std::int64_t b) {
  if (reduction.op == ReduceOp::BitAnd) return a & b;
  if (reduction.op == ReduceOp::BitOr) return a | b;
  if (reduction.op == ReduceOp::BitXor) return a ^ b;
  if (reduction.dtype == DataType::Bool) {
    const bool is_or = reduction.op == ReduceOp::Sum || reduction.op == ReduceOp::Max;
    return is_or ? (a | b) : (a & b);
  }
  if (!is_elementwise(reduction.op)) throw std::logic_error("there is no adasum of integers");
  const auto x = std::bit_cast<std::uint64_t>(a);
  const auto y = std::bit_cast<std::uint64_t>(b);
  const bool is_less = reduction.dtype == DataType::U64 ? x < y : a < b;
  if (reduction.op == ReduceOp::Min) return is_less ? a : b;
  if (reduction.op == ReduceOp::Max) return is_less ? b : a;
  return wrapped(reduction.dtype, reduction.op == ReduceOp::Product ? x * y : x + y);
}

__extension__ using Int128 = __int128;

/// An average, or a sum with factors.
std::int64_t scaled_sum(const Reduction& reduction, const std::vector<std::int64_t>& values) {
  Int128 sum = 0;
  for (const std::int64_t value : values) {
    sum += reduction.dtype == DataType::U64 ? Int128{std::bit_cast<std::uint64_t>(value)} : value;
  }
  const int divisor = reduction.op == ReduceOp::Average ? reduction.ranks : 1;
  if (is_unscaled(reduction)) return static_cast<std::int64_t>(sum / divisor);
  const double scaled = static_cast<double>(sum) * reduction.prescale * reduction.postscale;
  const double value = std::trunc(scaled / divisor);
  const int bits = 8 * static_cast<int>(size_of(reduction.dtype));
  const bool has_sign = !is_unsigned(reduction.dtype);
  const double least = has_sign ? -std::ldexp(1.0, bits - 1) : 0;
  const double most = std::ldexp(1.0, has_sign ? bits - 1 : bits) - 1;
  return static_cast<std::int64_t>(std::clamp(value, least, most));
}

std::int64_t reduce(const Reduction& reduction, const std::vector<std::int64_t>& values) {
  const bool is_scaled = reduction.op == ReduceOp::Average || !is_unscaled(reduction);
  if (is_integer(reduction.dtype) && is_scaled) return scaled_sum(reduction, values);
  std::int64_t result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) result = combine(reduction, result, values[i]);
  return result;
}

template <typename Number>
void gather_element(const std::vector<Number>& inputs, std::size_t element, std::size_t count,
                    std::vector<Number>& values) {
  values.clear();
  for (std::size_t i = element; i < inputs.size(); i += count) values.push_back(inputs[i]);
}

template <typename Number>
std::string describe(std::size_t element, Number got, Number expected,
                     const std::vector<Number>& inputs) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << "element " << element << " is " << got << ", not " << expected << "; the inputs were";
  for (const Number input : inputs) text << ' ' << input;
  return text.str();
}

std::string first_difference_of_integers(const Reduction& reduction,
                                         const std::vector<std::int64_t>& inputs,
                                         const Elements& result) {
  std::vector<std::int64_t> values;
  for (std::size_t i = 0; i < result.count(); ++i) {
    gather_element(inputs, i, result.count(), values);
    const std::int64_t expected = reduce(reduction, values);
    const std::int64_t got = result.integer(i);
    // A true bool is 1, whatever byte it was.
    const bool canonical =
        result.dtype() != DataType::Bool || result.bytes()[i] == static_cast<std::byte>(expected);
    if (got != expected || !canonical) return describe(i, got, expected, values);
  }
  return {};
}

}  // namespace

std::string first_difference(const Reduction& reduction, const std::vector<double>& inputs,
                             const Elements& result) {
  std::vector<double> values;
  std::vector<Approximate> vector;
  if (!is_elementwise(reduction.op) && result.count() > 0) {
    vector = reduce_vectors(reduction, inputs, result.count());
  }
  for (std::size_t i = 0; i < result.count(); ++i) {
    gather_element(inputs, i, result.count(), values);
    const Approximate expected = !vector.empty()        ? vector[i]
                                 : reduction.wire_dtype ? reduce_on_the_wire(reduction, values)
                                                        : reduce(reduction, values);
    const double got = result.number(i);
    if (reduction.wire_dtype && rounded_to(*reduction.wire_dtype, got) != got && !std::isnan(got)) {
      return "element " + std::to_string(i) + " is no number of the wire_dtype";
    }
    const bool close =
        std::isfinite(expected.value) && std::fabs(got - expected.value) <= expected.tolerance;
    const bool both_nan = std::isnan(got) && std::isnan(expected.value);
    const bool equal = got == expected.value || both_nan || close;
    if (!equal) return describe(i, got, expected.value, values);
  }
  return {};
}

std::string first_difference(const Reduction& reduction, const std::vector<Elements>& inputs,
                             const Elements& result, std::size_t begin) {
  if (is_complex(reduction.dtype)) {
    Reduction of_parts = reduction;
    of_parts.dtype = real_type(reduction.dtype);
    std::vector<Elements> parts;
    for (const Elements& input : inputs) parts.push_back(input.as(of_parts.dtype));
    return first_difference(of_parts, parts, result.as(of_parts.dtype), 2 * begin);
  }
  std::vector<double> numbers;
  std::vector<std::int64_t> integers;
  for (const Elements& input : inputs) {
    for (std::size_t i = begin; i < begin + result.count(); ++i) {
      if (is_floating(reduction.dtype)) {
        numbers.push_back(input.number(i));
      } else {
        integers.push_back(input.integer(i));
      }
    }
  }
  return is_floating(reduction.dtype) ? first_difference(reduction, numbers, result)
                                      : first_difference_of_integers(reduction, integers, result);
}

}  // namespace ronde::test

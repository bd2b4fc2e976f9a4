// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <type_traits>

#include "core/src/kernels/vector.h"
#include "ronde/collective.h"

// Operations on the elements of vectors, and their scaling. For the files of one
// instruction set only: see Note [One instruction set a file].

namespace ronde::kernels {
namespace {

// -0 is below +0, and a NaN wins, so that no result depends on the order of operands.

template <typename Wide>
RONDE_KERNEL Wide smaller(Wide a, Wide b) {
  if constexpr (kFloating<Wide>) {
    using Mask = decltype(a < b);
    const Mask equal = __builtin_bit_cast(Mask, a) | __builtin_bit_cast(Mask, b);
    const Wide unequal = ((a < b) | (a != a)) ? a : b;
    return a == b ? __builtin_bit_cast(Wide, equal) : unequal;
  } else {
    return a < b ? a : b;
  }
}

template <typename Wide>
RONDE_KERNEL Wide larger(Wide a, Wide b) {
  if constexpr (kFloating<Wide>) {
    using Mask = decltype(a > b);
    const Mask equal = __builtin_bit_cast(Mask, a) & __builtin_bit_cast(Mask, b);
    const Wide unequal = ((a > b) | (a != a)) ? a : b;
    return a == b ? __builtin_bit_cast(Wide, equal) : unequal;
  } else {
    return a > b ? a : b;
  }
}

/// Unsigned integers, which wrap around, instead of signed ones.
template <typename Wide>
RONDE_KERNEL auto wrapping(Wide value) {
  if constexpr (kFloating<Wide>) {
    return value;
  } else {
    using Unsigned = Vector<std::make_unsigned_t<Lane<Wide>>, sizeof(Wide)>;
    return __builtin_bit_cast(Unsigned, value);
  }
}

/// For bools, "or" is the larger value and "and" the smaller one.
template <typename Element>
consteval ReduceOp operation_on(ReduceOp op) {
  if (Element::kScales) return op;
  if (op == ReduceOp::Sum) return ReduceOp::Max;
  return op == ReduceOp::Product ? ReduceOp::Min : op;
}

template <typename Element, ReduceOp kOp, typename Wide = typename Element::Wide>
RONDE_KERNEL Wide combine(Wide a, Wide b) {
  constexpr ReduceOp kOn = operation_on<Element>(kOp);
  if constexpr (kOn == ReduceOp::Min) {
    return smaller(a, b);
  } else if constexpr (kOn == ReduceOp::Max) {
    return larger(a, b);
  } else if constexpr (kOn == ReduceOp::Product) {
    return __builtin_bit_cast(Wide, wrapping(a) * wrapping(b));
  } else {
    return __builtin_bit_cast(Wide, wrapping(a) + wrapping(b));
  }
}

/// The neutral element.
template <typename Element, typename Number = Lane<typename Element::Wide>>
consteval Number neutral(ReduceOp op) {
  using Limits = std::numeric_limits<Number>;
  const Number most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const Number least =
      Limits::has_infinity ? static_cast<Number>(-Limits::infinity()) : Limits::lowest();
  if (op == ReduceOp::Product) return Number{1};
  if (op == ReduceOp::Min) return Element::kScales ? most : Number{1};
  if (op == ReduceOp::Max) return least;
  return Number{0};
}

/// Numbers with which value * factor / divisor is computed: of the element's type for floating
/// point, else double.
template <typename Wide>
struct Scale {
  using Number = std::conditional_t<kFloating<Wide>, Lane<Wide>, double>;
  Number factor;
  Number divisor;
  bool is_identity;
  bool divides;
};

template <typename Wide>
RONDE_KERNEL Scale<Wide> make_scale(double factor, double divisor) {
  using Number = typename Scale<Wide>::Number;
  return {static_cast<Number>(factor), static_cast<Number>(divisor),
          factor == 1.0 && divisor == 1.0, divisor != 1.0};
}

/// Truncates toward zero and clamps; zero times infinity is zero.
template <typename Wide, typename Number = Lane<Wide>>
RONDE_KERNEL Number scaled_integer(Number value, const Scale<Wide>& scale) {
  using Limits = std::numeric_limits<Number>;
  constexpr Number kMost = Limits::max();
  constexpr Number kLeast = Limits::min();
  // The largest i64 is no double: compare with 2^63, which is.
  constexpr double kAbove = 2.0 * static_cast<double>(Number{1} << (Limits::digits - 1));
  double product = static_cast<double>(value) * scale.factor;
  if (scale.divides) product /= scale.divisor;
  if (product >= kAbove) return kMost;
  if (product < static_cast<double>(kLeast)) return kLeast;
  return product == product ? static_cast<Number>(product) : Number{0};
}

/// Not inline: it would be most of the code, for what is rarely asked for.
template <typename Wide>
[[gnu::noinline]] Wide scaled_integers(Wide value, const Scale<Wide>& scale) {
  for (std::size_t i = 0; i < sizeof(Wide) / sizeof(value[0]); ++i) {
    value[i] = scaled_integer<Wide>(value[i], scale);
  }
  return value;
}

template <typename Element, typename Wide = typename Element::Wide>
RONDE_KERNEL Wide scaled(Wide value, const Scale<Wide>& scale) {
  if constexpr (!Element::kScales) {
    return value;
  } else if constexpr (kFloating<Wide>) {
    const Wide product = value * scale.factor;
    return scale.divides ? product / scale.divisor : product;
  } else {
    return scale.is_identity ? value : scaled_integers(value, scale);
  }
}

}  // namespace
}  // namespace ronde::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <type_traits>

#include "core/src/kernels/vector.h"
#include "ronde/kernels.h"

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

/// For bools, which are 0 or 1, "or" is the larger value and "and" the smaller one.
template <typename Element>
consteval ReduceOp operation_on(ReduceOp op) {
  if (Element::kScales) return op;
  if (op == ReduceOp::Sum) return ReduceOp::Max;
  return op == ReduceOp::Product || op == ReduceOp::BitAnd ? ReduceOp::Min : op;
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
  } else if constexpr (kOn == ReduceOp::BitAnd) {
    return a & b;
  } else if constexpr (kOn == ReduceOp::BitOr) {
    return a | b;
  } else if constexpr (kOn == ReduceOp::BitXor) {
    return a ^ b;
  } else {
    return __builtin_bit_cast(Wide, wrapping(a) + wrapping(b));
  }
}

/// Returns the neutral element of `op`.
template <typename Element, typename Number = Lane<typename Element::Wide>>
consteval Number neutral(ReduceOp op) {
  using Limits = std::numeric_limits<Number>;
  const Number most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const Number least =
      Limits::has_infinity ? static_cast<Number>(-Limits::infinity()) : Limits::lowest();
  if (op == ReduceOp::Product) return Number{1};
  if (op == ReduceOp::BitAnd) return static_cast<Number>(Element::kScales ? -1 : 1);
  if (op == ReduceOp::Min) return Element::kScales ? most : Number{1};
  if (op == ReduceOp::Max) return least;
  return Number{0};
}

/// The scaling value * factor / divisor in the element's type. Only floating types are scaled.
template <typename Wide>
struct Scale {
  Lane<Wide> factor;
  Lane<Wide> divisor;
  bool divides;
};

template <typename Wide>
RONDE_KERNEL Scale<Wide> make_scale(const Scaling& scaling) {
  if constexpr (kFloating<Wide>) {
    return {static_cast<Lane<Wide>>(scaling.factor), static_cast<Lane<Wide>>(scaling.divisor),
            scaling.divisor != 1.0};
  } else {
    return {1, 1, false};
  }
}

template <typename Wide>
RONDE_KERNEL Wide scaled(Wide value, const Scale<Wide>& scale) {
  if constexpr (kFloating<Wide>) {
    const Wide product = value * scale.factor;
    return scale.divides ? product / scale.divisor : product;
  } else {
    return value;
  }
}

}  // namespace
}  // namespace ronde::kernels

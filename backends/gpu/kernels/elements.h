// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// Arithmetic of single elements in kernels, with the bits of core/src/kernels on the CPU: a result
// does not depend on where it was reduced. It is compiled for both, and tested without a GPU.

#ifdef __CUDACC__
#define RONDE_EVERYWHERE __host__ __device__ inline
#define RONDE_UNROLL _Pragma("unroll")  // arrays that it indexes are then in registers
#else
#define RONDE_EVERYWHERE inline
#define RONDE_UNROLL
#endif

namespace ronde::cuda::kernels {

template <typename To, typename From>
RONDE_EVERYWHERE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

/// As ReduceOp; an average is a sum here.
enum class Operation : std::uint32_t { Sum = 0, Min = 1, Max = 2, Product = 3 };

// Element types: what memory holds (Storage), and what is computed with (Wide).

/// Numbers as they are.
template <typename Number>
struct Plain {
  using Storage = Number;
  using Wide = Number;
  static constexpr bool kScales = true;
  RONDE_EVERYWHERE static Wide widen(Storage value) { return value; }
  RONDE_EVERYWHERE static Storage narrow(Wide value) { return value; }
};

/// The upper half of an f32.
struct Bfloat16 {
  using Storage = std::uint16_t;
  using Wide = float;
  static constexpr bool kScales = true;
  RONDE_EVERYWHERE static Wide widen(Storage value) {
    return bits_as<float>(static_cast<std::uint32_t>(value) << 16);
  }
  /// Rounds to nearest even. `value` may be the one quiet NaN, but no other.
  RONDE_EVERYWHERE static Storage narrow(Wide value) {
    const auto bits = bits_as<std::uint32_t>(value);
    return static_cast<Storage>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
};

/// IEEE 754 binary16.
struct Float16 {
  using Storage = std::uint16_t;
  using Wide = float;
  static constexpr bool kScales = true;
  RONDE_EVERYWHERE static Wide widen(Storage value) {
    const std::uint32_t sign = (value & 0x8000U) << 16;
    const std::uint32_t rest = value & 0x7fffU;
    if (rest >= 0x7c00U) return bits_as<float>(sign | 0x7f800000U | (rest << 13));
    if (rest >= 0x0400U) return bits_as<float>(sign | ((rest << 13) + (112U << 23)));
    // Subnormal or zero: `rest` units of 2^-24.
    return bits_as<float>(sign | bits_as<std::uint32_t>(static_cast<float>(rest) * 0x1p-24F));
  }
  /// As Bfloat16::narrow.
  RONDE_EVERYWHERE static Storage narrow(Wide value) {
    const auto bits = bits_as<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return static_cast<Storage>(sign | 0x7e00U);
    if (magnitude >= 0x477ff000U) return static_cast<Storage>(sign | 0x7c00U);  // 65520 and more
    if (magnitude < 0x38800000U) {
      // Below 2^-14: adding 0.5 rounds to units of 2^-24, nearest even.
      const float shifted = bits_as<float>(magnitude) + 0.5F;
      return static_cast<Storage>(sign | (bits_as<std::uint32_t>(shifted) - 0x3f000000U));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    return static_cast<Storage>(sign | ((magnitude - (112U << 23) + 0xfffU + odd) >> 13));
  }
};

/// One byte, zero is false.
struct Boolean : Plain<std::uint8_t> {
  static constexpr bool kScales = false;
  RONDE_EVERYWHERE static Wide widen(Storage value) { return value != 0 ? 1 : 0; }
};

/// Any NaN becomes the one quiet NaN.
template <typename Wide>
RONDE_EVERYWHERE Wide canonical(Wide value) {
  if constexpr (std::is_floating_point_v<Wide>) {
    return value == value ? value : std::numeric_limits<Wide>::quiet_NaN();
  } else {
    return value;
  }
}

/// Rounds to f32; inexact values to the neighbour with an odd last bit, so that rounding the result
/// to a half type equals a single rounding (Boldo and Melquiond, "Emulation of a FMA and correctly
/// rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008).
RONDE_EVERYWHERE float rounded_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  if (!(back < value) && !(back > value)) return nearest;
  const auto bits = bits_as<std::uint32_t>(nearest);
  if ((bits & 1U) != 0) return nearest;
  const bool is_above = (back > value) == (value > 0.0);  // in magnitude
  return bits_as<float>(is_above ? bits - 1 : bits + 1);
}

/// Converts between the Wide types of two elements.
template <typename To, typename From>
RONDE_EVERYWHERE typename To::Wide converted(From value) {
  if constexpr (std::is_same_v<From, double> && std::is_same_v<typename To::Wide, float>) {
    return rounded_to_odd(value);
  } else {
    return static_cast<typename To::Wide>(value);
  }
}

/// value * factor / divisor.
struct Scale {
  double factor;
  double divisor;
};

/// Only floating types are scaled.
template <typename Element>
RONDE_EVERYWHERE typename Element::Wide scaled(typename Element::Wide value, Scale scale) {
  using Wide = typename Element::Wide;
  if constexpr (Element::kScales && std::is_floating_point_v<Wide>) {
    const Wide product = value * static_cast<Wide>(scale.factor);
    return scale.divisor != 1.0 ? product / static_cast<Wide>(scale.divisor) : product;
  } else {
    return value;
  }
}

// -0 is below +0, and a NaN wins, so that no result depends on the order of operands.

template <typename Number>
using BitsOf = std::conditional_t<sizeof(Number) == 4, std::uint32_t, std::uint64_t>;

template <typename Wide>
RONDE_EVERYWHERE Wide smaller(Wide a, Wide b) {
  if constexpr (std::is_floating_point_v<Wide>) {
    using Bits = BitsOf<Wide>;
    if (a == b) return bits_as<Wide>(static_cast<Bits>(bits_as<Bits>(a) | bits_as<Bits>(b)));
    return a < b || a != a ? a : b;
  } else {
    return a < b ? a : b;
  }
}

template <typename Wide>
RONDE_EVERYWHERE Wide larger(Wide a, Wide b) {
  if constexpr (std::is_floating_point_v<Wide>) {
    using Bits = BitsOf<Wide>;
    if (a == b) return bits_as<Wide>(static_cast<Bits>(bits_as<Bits>(a) & bits_as<Bits>(b)));
    return a > b || a != a ? a : b;
  } else {
    return a > b ? a : b;
  }
}

/// Integers wrap around.
template <typename Wide>
RONDE_EVERYWHERE Wide sum(Wide a, Wide b) {
  if constexpr (std::is_floating_point_v<Wide>) {
    return a + b;
  } else {
    using Unsigned = std::make_unsigned_t<Wide>;
    return static_cast<Wide>(
        static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  }
}

template <typename Wide>
RONDE_EVERYWHERE Wide product(Wide a, Wide b) {
  if constexpr (std::is_floating_point_v<Wide>) {
    return a * b;
  } else {
    // Not in int, to which narrower types are promoted: that would overflow.
    return static_cast<Wide>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
}

/// The "or" of bools is the larger, the "and" the smaller.
template <typename Element>
RONDE_EVERYWHERE typename Element::Wide combined(typename Element::Wide a, typename Element::Wide b,
                                                 Operation operation) {
  if (operation == Operation::Product) return Element::kScales ? product(a, b) : smaller(a, b);
  if (operation == Operation::Sum) return Element::kScales ? sum(a, b) : larger(a, b);
  return operation == Operation::Min ? smaller(a, b) : larger(a, b);
}

/// The operand that leaves the other one unchanged.
template <typename Element>
RONDE_EVERYWHERE typename Element::Wide neutral(Operation operation) {
  using Wide = typename Element::Wide;
  using Limits = std::numeric_limits<Wide>;
  if (operation == Operation::Sum) return Wide{0};
  if (operation == Operation::Product || (operation == Operation::Min && !Element::kScales)) {
    return Wide{1};
  }
  if constexpr (Limits::has_infinity) {
    return operation == Operation::Min ? Limits::infinity() : -Limits::infinity();
  } else {
    return operation == Operation::Min ? Limits::max() : Limits::min();
  }
}

}  // namespace ronde::cuda::kernels

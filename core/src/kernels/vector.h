// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

// The vectors of GCC and Clang (vector_size), and what is computed with them. For the files of one
// instruction set only: see Note [One instruction set a file].

#define RONDE_KERNEL [[gnu::always_inline]] static inline

namespace ronde::kernels {
namespace {  // NOLINT(google-build-namespaces): every file has its own copy

template <typename Number, std::size_t kBytes>
struct VectorOf {
  typedef Number Type __attribute__((vector_size(kBytes)));  // NOLINT(modernize-use-using)
};
template <typename Number, std::size_t kBytes>
using Vector = typename VectorOf<Number, kBytes>::Type;

template <typename Isa>
using Floats = Vector<float, Isa::kBytes>;
/// Vector of as many f16 or bf16 as Floats has f32.
template <typename Isa>
using Halves = Vector<std::uint16_t, Isa::kBytes / 2>;

/// The bits of floats, signed, as every instruction set compares signed integers.
template <typename Isa>
using Bits = Vector<std::int32_t, Isa::kBytes>;

// Conversions for any instruction set; a set with faster ones replaces them.

template <typename Isa>
RONDE_KERNEL Floats<Isa> portable_widen_bf16(Halves<Isa> value) {
  using Words = Vector<std::uint32_t, Isa::kBytes>;
  return __builtin_bit_cast(Floats<Isa>, __builtin_convertvector(value, Words) << 16);
}

/// Rounds to nearest even. `value` may be the one quiet NaN, but no other.
template <typename Isa>
RONDE_KERNEL Halves<Isa> portable_narrow_bf16(Floats<Isa> value) {
  using Words = Vector<std::uint32_t, Isa::kBytes>;
  const Words bits = __builtin_bit_cast(Words, value);
  const Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return __builtin_convertvector(rounded >> 16, Halves<Isa>);
}

template <typename Isa>
RONDE_KERNEL Floats<Isa> portable_widen_f16(Halves<Isa> value) {
  const Bits<Isa> bits = __builtin_convertvector(value, Bits<Isa>);
  const Bits<Isa> sign = (bits & 0x8000) << 16;
  const Bits<Isa> rest = bits & 0x7fff;
  const Bits<Isa> normal = (rest << 13) + (112 << 23);
  const Bits<Isa> special = (rest << 13) | 0x7f800000;
  // Subnormal or zero: `rest` units of 2^-24.
  const Floats<Isa> units = __builtin_convertvector(rest, Floats<Isa>) * 0x1p-24F;
  const Bits<Isa> small = __builtin_bit_cast(Bits<Isa>, units);
  const Bits<Isa> finite = rest < 0x0400 ? small : normal;
  return __builtin_bit_cast(Floats<Isa>, sign | (rest < 0x7c00 ? finite : special));
}

/// Rounds to nearest even. `value` may be the one quiet NaN, but no other.
template <typename Isa>
RONDE_KERNEL Halves<Isa> portable_narrow_f16(Floats<Isa> value) {
  const Bits<Isa> bits = __builtin_bit_cast(Bits<Isa>, value);
  const Bits<Isa> magnitude = bits & 0x7fffffff;
  const Bits<Isa> sign = (bits ^ magnitude) >> 16;
  const Bits<Isa> normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14: adding 0.5 makes the processor round to units of 2^-24, nearest even.
  const Floats<Isa> shifted = __builtin_bit_cast(Floats<Isa>, magnitude) + 0.5F;
  const Bits<Isa> small = __builtin_bit_cast(Bits<Isa>, shifted) - 0x3f000000;
  const Bits<Isa> finite = magnitude < 0x38800000 ? small : normal;
  const Bits<Isa> infinite = Bits<Isa>{} + 0x7c00;
  const Bits<Isa> nan = Bits<Isa>{} + 0x7e00;
  const Bits<Isa> large = magnitude > 0x7f800000 ? nan : infinite;
  const Bits<Isa> result = magnitude < 0x477ff000 ? finite : large;  // 65520 is infinite
  return __builtin_convertvector((result | sign) & 0xffff, Halves<Isa>);
}

/// Rounds to f32, to the neighbour with the odd last bit where it is inexact: rounding that to a
/// half type then gives the result of a single rounding (Boldo and Melquiond, "Emulation of a FMA
/// and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers
/// 57(4), 2008). The one quiet NaN stays what it is.
template <typename Isa>
RONDE_KERNEL Vector<float, Isa::kBytes / 2> rounded_to_odd(Vector<double, Isa::kBytes> value) {
  using Doubles = Vector<double, Isa::kBytes>;
  using Singles = Vector<float, Isa::kBytes / 2>;
  using Words = Vector<std::int32_t, Isa::kBytes / 2>;
  const Singles nearest = __builtin_convertvector(value, Singles);
  const Doubles back = __builtin_convertvector(nearest, Doubles);
  const auto inexact = (back < value) | (back > value);
  const auto is_above = (back > value) == (value > 0.0);  // in magnitude
  const Words bits = __builtin_bit_cast(Words, nearest);
  const Words step = __builtin_convertvector(is_above, Words) | 1;  // -1 or 1
  const Words moves = __builtin_convertvector(inexact, Words) & ((bits & 1) == 0);
  return __builtin_bit_cast(Singles, bits + (step & moves));
}

// Element types: vectors in memory (Raw, of Storage), and vectors in computations (Wide).

template <typename IsaType, typename Number>
struct Plain {
  using Isa = IsaType;
  using Storage = Number;
  using Wide = Vector<Number, Isa::kBytes>;
  using Raw = Wide;
  static constexpr bool kScales = true;
  RONDE_KERNEL Wide widen(Raw value) { return value; }
  RONDE_KERNEL Raw narrow(Wide value) { return value; }
};

template <typename IsaType>
struct Half {
  using Isa = IsaType;
  using Storage = std::uint16_t;
  using Wide = Floats<Isa>;
  using Raw = Halves<Isa>;
  static constexpr bool kScales = true;
};

template <typename Isa>
struct F16 : Half<Isa> {
  RONDE_KERNEL Floats<Isa> widen(Halves<Isa> value) {
    if constexpr (requires { Isa::widen_f16(value); }) return Isa::widen_f16(value);
    return portable_widen_f16<Isa>(value);
  }
  RONDE_KERNEL Halves<Isa> narrow(Floats<Isa> value) {
    if constexpr (requires { Isa::narrow_f16(value); }) return Isa::narrow_f16(value);
    return portable_narrow_f16<Isa>(value);
  }
};

template <typename Isa>
struct BF16 : Half<Isa> {
  RONDE_KERNEL Floats<Isa> widen(Halves<Isa> value) {
    if constexpr (requires { Isa::widen_bf16(value); }) return Isa::widen_bf16(value);
    return portable_widen_bf16<Isa>(value);
  }
  RONDE_KERNEL Halves<Isa> narrow(Floats<Isa> value) { return portable_narrow_bf16<Isa>(value); }
};

/// A half type that is computed with in f64: half as many as fit a vector of f32.
template <typename HalfType>
struct AsDoubles {
  using Isa = typename HalfType::Isa;
  using Storage = std::uint16_t;
  using Wide = Vector<double, Isa::kBytes>;
  using Raw = Vector<std::uint16_t, Isa::kBytes / 4>;
  static constexpr bool kScales = true;

  RONDE_KERNEL Wide widen(Raw value) {
    Halves<Isa> halves{};
    __builtin_memcpy(&halves, &value, sizeof value);
    const Floats<Isa> floats = HalfType::widen(halves);
    Vector<float, Isa::kBytes / 2> singles;
    __builtin_memcpy(&singles, &floats, sizeof singles);
    return __builtin_convertvector(singles, Wide);
  }
  RONDE_KERNEL Raw narrow(Wide value) {
    const auto singles = rounded_to_odd<Isa>(value);
    Floats<Isa> floats{};
    __builtin_memcpy(&floats, &singles, sizeof singles);
    const Halves<Isa> halves = HalfType::narrow(floats);
    Raw raw;
    __builtin_memcpy(&raw, &halves, sizeof raw);
    return raw;
  }
};

template <typename Isa>
struct Truth : Plain<Isa, std::uint8_t> {
  using Bytes = Vector<std::uint8_t, Isa::kBytes>;
  static constexpr bool kScales = false;
  RONDE_KERNEL Bytes widen(Bytes value) { return __builtin_bit_cast(Bytes, value != 0) & 1; }
};

/// The number type of a vector's lanes.
template <typename Wide>
using Lane = std::remove_cvref_t<decltype(Wide{}[0])>;
template <typename Wide>
constexpr bool kFloating = std::is_floating_point_v<Lane<Wide>>;

template <typename Wide>
RONDE_KERNEL Wide splat(Lane<Wide> value) {
  return value - Wide{};  // not +, which would make +0 of -0
}

/// All NaN become the one quiet NaN.
template <typename Wide>
RONDE_KERNEL Wide canonical(Wide value) {
  if constexpr (kFloating<Wide>) {
    constexpr Lane<Wide> kNan = std::numeric_limits<Lane<Wide>>::quiet_NaN();
    return value == value ? value : splat<Wide>(kNan);
  } else {
    return value;
  }
}

// Stores that bypass the caches on x86; elsewhere there is none for one vector, and the hardware
// notices long runs.

/// `address` is a multiple of the vector's size.
template <typename Raw>
RONDE_KERNEL void stream_vector(void* address, Raw value) {
#ifndef __SSE2__
  __builtin_memcpy(address, &value, sizeof value);
#else
  if constexpr (sizeof(Raw) == 4) {
    _mm_stream_si32(static_cast<int*>(address), __builtin_bit_cast(int, value));
  } else if constexpr (sizeof(Raw) == 8) {
    _mm_stream_si64(static_cast<long long*>(address), __builtin_bit_cast(long long, value));
  } else if constexpr (sizeof(Raw) == 16) {
    _mm_stream_si128(static_cast<__m128i*>(address), __builtin_bit_cast(__m128i, value));
#ifdef __AVX__
  } else if constexpr (sizeof(Raw) == 32) {
    _mm256_stream_si256(static_cast<__m256i*>(address), __builtin_bit_cast(__m256i, value));
#endif
#ifdef __AVX512F__
  } else if constexpr (sizeof(Raw) == 64) {
    _mm512_stream_si512(static_cast<__m512i*>(address), __builtin_bit_cast(__m512i, value));
#endif
  }
#endif
}

/// Orders streamed stores before the store that publishes them.
RONDE_KERNEL void fence_streams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace ronde::kernels

// SPDX-License-Identifier: Apache-2.0
// Compiled with AVX-512 F, BW, DQ and VL: see Note [One instruction set a file].
#include <immintrin.h>

#include "core/src/kernels/loops.h"

namespace ronde::kernels {
namespace {

struct Avx512 {
  static constexpr std::size_t kBytes = 64;

  RONDE_KERNEL __m512 widen_f16(Vector<std::uint16_t, 32> value) {
    return _mm512_cvtph_ps(__builtin_bit_cast(__m256i, value));
  }
  RONDE_KERNEL Vector<std::uint16_t, 32> narrow_f16(__m512 value) {
    const __m256i halves = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    return __builtin_bit_cast(Vector<std::uint16_t, 32>, halves);
  }
  // GCC 12 makes four instructions of the portable conversion, not two.
  RONDE_KERNEL __m512 widen_bf16(Vector<std::uint16_t, 32> value) {
    const __m512i words = _mm512_cvtepu16_epi32(__builtin_bit_cast(__m256i, value));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }
};

}  // namespace

const InstructionSet kAvx512 = kInstructionSet<Avx512>;

}  // namespace ronde::kernels

// SPDX-License-Identifier: Apache-2.0
// Compiled with AVX2 and F16C: see Note [One instruction set a file].
#include <immintrin.h>

#include "core/src/kernels/loops.h"

namespace ronde::kernels {
namespace {

struct Avx2 {
  static constexpr std::size_t kBytes = 32;

  RONDE_KERNEL __m256 widen_f16(Vector<std::uint16_t, 16> value) {
    return _mm256_cvtph_ps(__builtin_bit_cast(__m128i, value));
  }
  RONDE_KERNEL Vector<std::uint16_t, 16> narrow_f16(__m256 value) {
    const __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    return __builtin_bit_cast(Vector<std::uint16_t, 16>, halves);
  }
  // GCC 12 makes four instructions of the portable conversion, not two.
  RONDE_KERNEL __m256 widen_bf16(Vector<std::uint16_t, 16> value) {
    const __m256i words = _mm256_cvtepu16_epi32(__builtin_bit_cast(__m128i, value));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
};

}  // namespace

const InstructionSet kAvx2 = kInstructionSet<Avx2>;

}  // namespace ronde::kernels

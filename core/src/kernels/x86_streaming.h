// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "core/src/kernels/vector.h"

// Stores that bypass the caches on x86; elsewhere there is none for one vector, and the hardware
// notices long runs. For the files of one instruction set only: see Note [One instruction set a
// file].

namespace ronde::kernels {
namespace {

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

/// Streamed stores are not ordered with the store that tells a reader of them, unless by this.
RONDE_KERNEL void fence_streams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace ronde::kernels

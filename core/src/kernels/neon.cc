// SPDX-License-Identifier: Apache-2.0
// AArch64's NEON: see Note [One instruction set a file].
#include <arm_neon.h>

#include "core/src/kernels/loops.h"

namespace ronde::kernels {
namespace {

struct Neon {
  static constexpr std::size_t kBytes = 16;
  using F32 = Vector<float, 16>;
  using U16 = Vector<std::uint16_t, 8>;

  RONDE_KERNEL F32 widen_f16(U16 value) {
    return __builtin_bit_cast(F32, vcvt_f32_f16(__builtin_bit_cast(float16x4_t, value)));
  }
  RONDE_KERNEL U16 narrow_f16(F32 value) {
    return __builtin_bit_cast(U16, vcvt_f16_f32(__builtin_bit_cast(float32x4_t, value)));
  }
};

}  // namespace

const InstructionSet kNeon = kInstructionSet<Neon>;

}  // namespace ronde::kernels

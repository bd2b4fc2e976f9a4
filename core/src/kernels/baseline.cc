// SPDX-License-Identifier: Apache-2.0
// What every processor of the architecture can run: see Note [One instruction set a file].
#include "core/src/kernels/loops.h"

#ifdef __SSE2__
#include "core/src/kernels/x86_streaming.h"
#endif

namespace ronde::kernels {
namespace {

struct Baseline {
  static constexpr std::size_t kBytes = 16;
  using F32 = Vector<float, kBytes>;
  using U16 = Vector<std::uint16_t, kBytes / 2>;

  RONDE_KERNEL F32 widen_f16(U16 value) { return portable_widen_f16<Baseline>(value); }
  RONDE_KERNEL U16 narrow_f16(F32 value) { return portable_narrow_f16<Baseline>(value); }
  RONDE_KERNEL F32 widen_bf16(U16 value) { return portable_widen_bf16<Baseline>(value); }
  RONDE_KERNEL U16 narrow_bf16(F32 value) { return portable_narrow_bf16<Baseline>(value); }

#ifdef __SSE2__
  template <typename Raw>
  RONDE_KERNEL void stream(void* address, Raw value) {
    stream_vector(address, value);
  }
  RONDE_KERNEL void fence() {
    fence_streams();
  }
#else
  template <typename Raw>
  RONDE_KERNEL void stream(void* address, Raw value) {
    __builtin_memcpy(address, &value, sizeof value);
  }
  RONDE_KERNEL void fence() {}
#endif
};

}  // namespace

const InstructionSet kBaseline = kInstructionSet<Baseline>;

}  // namespace ronde::kernels

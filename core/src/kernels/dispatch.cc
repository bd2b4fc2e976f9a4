// SPDX-License-Identifier: Apache-2.0
// The instruction sets behind ronde/kernels.h: see Note [One instruction set a file].
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>
#include <vector>

#include "core/src/kernels/instruction_set.h"
#include "ronde/kernels.h"

namespace ronde {
namespace {

using kernels::InstructionSet;

template <const InstructionSet& kSet>
void reduce(void* output, std::span<const void* const> inputs, std::size_t count,
            const Reduction& reduction, Store store) {
  const bool has_bytes = is_bitwise(reduction.op) && is_integer(reduction.dtype);
  kSet.reduce({.output = output,
               .inputs = inputs.data(),
               .input_count = inputs.size(),
               .count = has_bytes ? count * size_of(reduction.dtype) : count,
               .dtype = has_bytes ? DataType::U8 : reduction.dtype,
               .op = reduction.op,
               .prescale = reduction.prescale,
               .factor = reduction.final.factor,
               .divisor = reduction.final.divisor,
               .streaming = store == Store::Streaming});
}

template <const InstructionSet& kSet>
void copy(void* output, const void* input, std::size_t bytes, Store store) {
  if (bytes == 0) return;  // the pointers may be null
  if (store == Store::Streaming) {
    kSet.copy_streaming(output, input, bytes);
  } else {
    std::memcpy(output, input, bytes);
  }
}

template <const InstructionSet& kSet, auto kConvert>
void convert(void* output, const void* input, std::size_t count, const Conversion& conversion,
             Store store) {
  (kSet.*kConvert)({.output = output,
                    .input = input,
                    .count = count,
                    .half = conversion.half,
                    .full = conversion.full,
                    .factor = conversion.scaling.factor,
                    .divisor = conversion.scaling.divisor,
                    .streaming = store == Store::Streaming});
}

template <const InstructionSet& kSet>
Products products(const void* first, const void* second, std::size_t count, DataType dtype) {
  double sums[3] = {};
  kSet.products(sums, first, second, count, dtype);
  return {.mixed = sums[0], .first = sums[1], .second = sums[2]};
}

template <const InstructionSet& kSet>
void blend(void* output, const void* first, const void* second, std::size_t count, DataType dtype,
           const Blend& factors) {
  kSet.blend({.output = output,
              .first = first,
              .second = second,
              .count = count,
              .dtype = dtype,
              .first_factor = factors.first,
              .second_factor = factors.second});
}

template <const InstructionSet& kSet>
constexpr Kernels named(std::string_view name) {
  return {name,
          reduce<kSet>,
          copy<kSet>,
          convert<kSet, &InstructionSet::widen>,
          convert<kSet, &InstructionSet::narrow>,
          products<kSet>,
          blend<kSet>};
}

constexpr Kernels kBaseline = named<kernels::kBaseline>("baseline");

#if defined(__x86_64__)
constexpr Kernels kAvx2 = named<kernels::kAvx2>("avx2");
constexpr Kernels kAvx512 = named<kernels::kAvx512>("avx512");

/// Clang knows no __builtin_cpu_supports("f16c").
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

#elif defined(__aarch64__)
constexpr Kernels kNeon = named<kernels::kNeon>("neon");
#endif

std::vector<const Kernels*> find_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  // __builtin_cpu_supports also asks whether the operating system saves the registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    found.push_back(&kAvx512);
  }
  if (avx2) found.push_back(&kAvx2);
#elif defined(__aarch64__)
  found.push_back(&kNeon);
#endif
  found.push_back(&kBaseline);
  return found;
}

}  // namespace

std::span<const Kernels* const> available_kernels() {
  static const std::vector<const Kernels*> available = find_kernels();
  return available;
}

const Kernels& best_kernels() {
  return *available_kernels().front();
}

}  // namespace ronde

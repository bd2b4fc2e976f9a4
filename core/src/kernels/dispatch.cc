// SPDX-License-Identifier: Apache-2.0
// The instruction sets behind ronde/kernels.h: see Note [One instruction set a file].
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <vector>

#include "core/src/kernels/instruction_set.h"
#include "ronde/kernels.h"

namespace ronde {
namespace {

using kernels::InstructionSet;

template <const InstructionSet& kSet>
const Kernels* named(std::string_view name) {
  const auto reduce = [](void* output, std::span<const void* const> inputs, std::size_t count,
                         const Reduction& reduction, Store store) {
    kSet.reduce(output, inputs.data(), inputs.size(), count, reduction, store);
  };
  static const Kernels all = {name,        reduce,        kSet.copy, kSet.widen,
                              kSet.narrow, kSet.products, kSet.blend};
  return &all;
}

#if defined(__x86_64__)
/// Clang knows no __builtin_cpu_supports("f16c").
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

std::vector<const Kernels*> find_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  // __builtin_cpu_supports also asks whether the operating system saves the registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    found.push_back(named<kernels::kAvx512>("avx512"));
  }
  if (avx2) found.push_back(named<kernels::kAvx2>("avx2"));
#elif defined(__aarch64__)
  found.push_back(named<kernels::kNeon>("neon"));
#endif
  found.push_back(named<kernels::kBaseline>("baseline"));
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

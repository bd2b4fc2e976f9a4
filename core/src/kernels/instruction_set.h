// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "ronde/kernels.h"

// Note [One instruction set a file]
// avx2.cc and avx512.cc are compiled with instructions that the processor at hand may lack, and are
// called only where it has them. An inline function that such a file leaves out of line is merged
// by the linker with the copies of all other files, and whichever it keeps is what everybody runs:
// one call of std::min there could end every program on an older processor. So the loops are
// written in unnamed namespaces, call no function of the standard library and take plain pointers
// and structs; dispatch.cc, compiled like the rest, takes the std::span of ronde/kernels.h apart.
// The test kernels.sets_share_no_function reads the symbols of the object files.
//
// The files are optimised in debug builds too, for unoptimised loops over vectors crawl, and
// without fusing a * b + c, which rounds once where the other sets round twice.

namespace ronde::kernels {

/// Kernels of ronde/kernels.h as compiled for one instruction set; reduce() takes no std::span.
struct InstructionSet {
  void (*reduce)(void* output, const void* const* inputs, std::size_t input_count,
                 std::size_t count, const Reduction& reduction, Store store);
  decltype(Kernels::copy) copy;
  decltype(Kernels::widen) widen;
  decltype(Kernels::narrow) narrow;
  decltype(Kernels::products) products;
  decltype(Kernels::blend) blend;
};

extern const InstructionSet kBaseline;
extern const InstructionSet kAvx2;
extern const InstructionSet kAvx512;
extern const InstructionSet kNeon;

}  // namespace ronde::kernels

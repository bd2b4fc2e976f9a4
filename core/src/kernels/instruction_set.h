// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "ronde/collective.h"
#include "ronde/dtype.h"

// Note [One instruction set a file]
// avx2.cc and avx512.cc are compiled with instructions that the processor at hand may lack, and are
// called only where it has them. An inline function that such a file leaves out of line is merged
// by the linker with the copies of all other files, and whichever it keeps is what everybody runs:
// one call of std::min there could end every program on an older processor. So the loops are
// written in unnamed namespaces, call no function of the standard library and take plain pointers
// and numbers; dispatch.cc, compiled like the rest, stands between them and ronde/kernels.h. The
// test kernels.sets_share_no_function reads the symbols of the object files.
//
// The files are optimised in debug builds too, for unoptimised loops over vectors crawl, and
// without fusing a * b + c, which rounds once where the other sets round twice.

namespace ronde::kernels {

/// Reduction of ronde/kernels.h and its operands.
struct ReduceTask {
  void* output;
  const void* const* inputs;
  std::size_t input_count;
  std::size_t count;
  DataType dtype;
  ReduceOp op;
  double prescale;
  double factor;
  double divisor;
  bool streaming;
};

/// Conversion of ronde/kernels.h and its operands.
struct ConvertTask {
  void* output;
  const void* input;
  std::size_t count;
  DataType half;
  DataType full;
  double factor;
  double divisor;
  bool streaming;
};

/// Two vectors of F32 or F64, each with its factor.
struct BlendTask {
  void* output;
  const void* first;
  const void* second;
  std::size_t count;
  DataType dtype;
  double first_factor;
  double second_factor;
};

/// The loops as compiled for one instruction set.
struct InstructionSet {
  void (*reduce)(const ReduceTask& task);
  void (*widen)(const ConvertTask& task);
  void (*narrow)(const ConvertTask& task);
  void (*copy_streaming)(void* output, const void* input, std::size_t bytes);
  void (*products)(double* sums, const void* first, const void* second, std::size_t count,
                   DataType dtype);
  void (*blend)(const BlendTask& task);
};

extern const InstructionSet kBaseline;
extern const InstructionSet kAvx2;
extern const InstructionSet kAvx512;
extern const InstructionSet kNeon;

}  // namespace ronde::kernels

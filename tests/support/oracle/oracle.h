// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ronde/kernels.h"
#include "tests/support/oracle/elements.h"

namespace ronde::test {

/// What an allreduce was asked for.
struct Reduction {
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int ranks = 1;
  std::optional<DataType> wire_dtype = {};  ///< as that of a Request; not `dtype` itself
  int hosts = 1;  ///< where sums of hosts are rounded to wire_dtype too, how many there are
};

/// The scaling after the reduction, as a backend gets it.
inline Scaling final_of(const Reduction& reduction) {
  return final_scaling(reduction.dtype, reduction.op, reduction.postscale, reduction.ranks);
}

inline bool is_reduction(Collective kind) {
  return kind == Collective::Allreduce || kind == Collective::Reduce ||
         kind == Collective::Reducescatter;
}

constexpr bool is_unsigned(DataType dtype) {
  return dtype == DataType::U8 || (dtype >= DataType::U16 && dtype <= DataType::U64);
}

/// The elementwise ops of a type.
inline std::vector<ReduceOp> ops_of(DataType dtype) {
  if (is_complex(dtype)) return {ReduceOp::Sum, ReduceOp::Average};
  std::vector<ReduceOp> ops(kElementwiseOps.begin(), kElementwiseOps.end());
  if (is_floating(dtype)) return ops;
  if (dtype == DataType::Bool) std::erase(ops, ReduceOp::Average);
  ops.insert(ops.end(), {ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor});
  return ops;
}

/// Whether a reduction can have factors: any of floating types, and a sum or average of integers of
/// up to 32 bits.
inline bool can_have_factors(DataType dtype, ReduceOp op) {
  if (is_floating(real_type(dtype))) return true;
  const bool adds = op == ReduceOp::Sum || op == ReduceOp::Average;
  return adds && is_integer(dtype) && size_of(dtype) < 8;
}

/// Compares a result with what the inputs of all ranks make in double precision. `inputs` holds
/// them rank after rank. Empty if equal (integers, and unscaled min and max: exactly; other floats:
/// within the error that one rounding an operation may cause; with a wire_dtype, on one host:
/// exactly, as rounded and reduced here in the order of ranks), else a text on the first
/// difference. Of an Adasum the inputs are zeros where a rank brought nothing.
std::string first_difference(const Reduction& reduction, const std::vector<double>& inputs,
                             const Elements& result);

/// The same of the elements from `begin` on, as many as the result has, of each rank's input, also
/// of integers and bools: sums in 128 bits, divided as integers or scaled in double precision,
/// truncated toward zero and clamped to the type; without average or factors, wrapped.
std::string first_difference(const Reduction& reduction, const std::vector<Elements>& inputs,
                             const Elements& result, std::size_t begin = 0);

}  // namespace ronde::test

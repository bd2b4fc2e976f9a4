// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/runtime.h"

namespace ronde::test {

/// How the rows of the tensors are spread over the ranks of a set.
enum class Spread {
  Uneven,
  Even,    ///< an alltoall has no splits
  Skewed,  ///< rank 0 gives none, and of an alltoall or reducescatter it alone gets any
};

/// A collective of one element type and op.
struct Row {
  Collective kind = Collective::Allreduce;  ///< Send: a send and a recv, around the set
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  bool in_place = false;   ///< of a message: from any rank
  int root = 0;            ///< of a broadcast or reduce
  std::size_t width = 37;  ///< elements of a row of the tensor
  Spread spread = Spread::Uneven;
  bool allocated = false;  ///< Ronde asks for the memory of the result; not in place
  double prescale = 1.0;
  double postscale = 1.0;
  std::optional<DataType> wire_dtype = {};  ///< of an allreduce
};

/// Where a row runs: a process set, and this rank's place in it.
struct Place {
  ProcessSet set;
  std::vector<int> ranks;
  int rank = 0;

  int size() const { return static_cast<int>(ranks.size()); }
};

/// Runs the row on this rank. Returns how its result differs from what the inputs of all members
/// make, computed without Ronde; empty if it does not.
std::string run_row(const Row& row, Runtime& runtime, const Place& place);

/// Runs every collective of a type, in place and not, and where it reduces with every op that the
/// type has. Names the rows that are wrong; empty: none.
std::string run_rows(DataType dtype, Runtime& runtime, const Place& place);

}  // namespace ronde::test

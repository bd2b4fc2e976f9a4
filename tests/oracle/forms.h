// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "elements.h"
#include "ronde/runtime.h"

namespace ronde::test {

/// A row of the table.
struct Case {
  Collective kind = Collective::Allreduce;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
};

/// Where a case runs: a process set, and this rank's place in it.
struct Place {
  ProcessSet set;
  std::vector<int> ranks;
  int rank = 0;

  int size() const { return static_cast<int>(ranks.size()); }
};

/// What every member of the set puts in: by rank in the set, rows of kWidth elements.
inline constexpr std::size_t kWidth = 37;
std::vector<Elements> inputs_of(const Case& row, const Place& place);

/// Rows of the input of `rank` of a set of `size`.
std::size_t rows_of(const Case& row, int rank, int size);
/// Alltoall: rows from one rank of a set to another.
std::size_t rows_between(int from, int to);

/// Runs the case and returns this rank's result. `in_place`: input and output share memory as far
/// as the collective has such a form.
Elements run_case(Runtime& runtime, const Case& row, const Place& place,
                  const std::vector<Elements>& inputs, bool in_place);

}  // namespace ronde::test

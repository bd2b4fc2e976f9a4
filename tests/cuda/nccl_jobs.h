// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "gpu_tensor.h"
#include "ronde/runtime.h"
#include "tests/unit/reduction_oracle.h"

namespace ronde::test {

/// A reduction on a GPU of each rank.
struct Job {
  Collective kind = Collective::Allreduce;
  DataType dtype = DataType::F32;
  std::optional<DataType> wire = {};
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::size_t count = 1;
  int absent = -1;  ///< rank that adds nothing
};

/// Every dtype, also on the wire, by every op, with scales, and without one rank here and there.
std::vector<Job> all_jobs(Collective kind, int ranks);

/// Every so many-th.
std::vector<Job> chosen(const std::vector<Job>& jobs, std::size_t every);

/// Runs them at once, so that they are fused, or one by one: against numbers in double precision,
/// and against the same on the CPU, whose bits they have, but for sums and products of f32 and f64
/// if NCCL reduces more than two ranks (`has_order`: it does not).
void check_jobs(const std::vector<Job>& jobs, ProgramGpu& gpu, Runtime& runtime, bool at_once,
                bool has_order);

}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ronde/backend.h"
#include "tests/support/oracle/elements.h"
#include "tests/support/oracle/oracle.h"

namespace ronde::test {

/// One allreduce on a list of segments.
struct Call {
  Reduction reduction;
  std::vector<std::size_t> counts;  ///< of the segments
  bool in_place = false;
  std::uint64_t seed = 1;
};

/// A rank's allreduce, from start to end.
using RunAllreduce = std::function<void(const AllreduceCall& call)>;

/// Runs `body(rank, allreduce)` on a thread for each rank of a backend under test.
using RunRanks =
    std::function<void(const std::function<void(int rank, const RunAllreduce& allreduce)>& body)>;

/// The results of all ranks, of calls one after the other on the same backend.
std::vector<std::vector<Elements>> results_of(const std::vector<Call>& calls,
                                              const RunRanks& run_ranks);

/// The first difference of a result from what the inputs make in double precision or 64-bit
/// integers; empty if there is none.
std::string difference(const Reduction& reduction, const std::vector<Elements>& inputs,
                       const Elements& result);

/// Against numbers reduced in double precision or 64-bit integers; equal bits on all ranks.
void check_calls(const std::vector<Call>& calls, const RunRanks& run_ranks);

/// The same for what `reduction` says but for its scales: lists of all kinds, in place and not,
/// scaled and not.
void check_lists(const Reduction& reduction, const RunRanks& run_ranks);

/// check_lists() of every dtype by every op.
void check_every_op(int ranks, const RunRanks& run_ranks);

/// Ranks that add nothing to some of the segments, of several dtypes and ops: the oracle leaves
/// them out.
void check_absent(int ranks, const RunRanks& run_ranks);

/// Every op on f32 that is sent as bf16 and f64 as f16, and averages of the other pairs.
void check_wire_dtypes(int ranks, int hosts, const RunRanks& run_ranks);

}  // namespace ronde::test

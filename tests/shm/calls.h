// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/backend.h"
#include "tests/support/oracle/elements.h"
#include "tests/support/oracle/oracle.h"

namespace ronde::test {

/// An allreduce of a list of segments.
struct Call {
  Reduction reduction;
  std::vector<std::size_t> counts;  ///< elements of the segments
  bool in_place = false;
  std::uint64_t seed = 1;
};

/// Runs a rank's allreduce from start to end.
using RunAllreduce = std::function<void(const AllreduceCall& call)>;

/// Runs `body(rank, allreduce)` on a thread for each rank of a backend under test.
using RunRanks =
    std::function<void(const std::function<void(int rank, const RunAllreduce& allreduce)>& body)>;

/// Returns the results, by rank and call, of calls that follow each other on the same backend.
std::vector<std::vector<Elements>> results_of(const std::vector<Call>& calls,
                                              const RunRanks& run_ranks);

/// Checks that results have no first_difference(), and are the same bits on all ranks.
void check_calls(const std::vector<Call>& calls, const RunRanks& run_ranks);

/// Checks calls of all kinds of lists, in place and not, scaled and not; ignores the scales of
/// `reduction`.
void check_lists(const Reduction& reduction, const RunRanks& run_ranks);

/// Runs check_lists() for every dtype and op.
void check_every_op(int ranks, const RunRanks& run_ranks);

/// Checks calls of several dtypes and ops, in which ranks add nothing to some of the segments, and
/// want no result of others.
void check_absent(int ranks, const RunRanks& run_ranks);

/// Checks every op on f32 sent as bf16 and on f64 sent as f16, and averages of the other pairs.
void check_wire_dtypes(int ranks, int hosts, const RunRanks& run_ranks);

}  // namespace ronde::test

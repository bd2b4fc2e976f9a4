// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace ronde::test {

// What ranks do until they are told to stop, or thrown out. Memory of operations that fail stays
// for as long as the process.

/// Makes process sets, reduces in them, and removes them, one after the other.
void run_sets(unsigned seed, const std::atomic<bool>& stops);

/// Epochs of uneven data: groups of sums until this rank has no more, then a join.
void run_joins(unsigned seed, const std::atomic<bool>& stops);

}  // namespace ronde::test

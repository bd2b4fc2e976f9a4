// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kmeans {

// Ronde's collectives on plain buffers, as this program needs them. Each waits for its result, and
// throws ronde::GroupError when a rank has failed or left.

/// Each element becomes its sum over the ranks.
void allreduce_sum(std::span<std::int64_t> values, const std::string& name);

/// Each element becomes its largest value on any rank.
void allreduce_max(std::span<double> values, const std::string& name);

/// Every rank gets the root's values.
void broadcast(std::span<double> values, int root, const std::string& name);

/// Returns the values of all ranks, in rank order; `total` is their number, and each rank may have
/// another.
std::vector<double> allgather(std::span<const double> values, std::size_t total,
                              const std::string& name);
std::vector<std::int32_t> allgather(std::span<const std::int32_t> values, std::size_t total,
                                    const std::string& name);

}  // namespace kmeans

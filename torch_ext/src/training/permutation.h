// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ronde::detail {

/// 0 to size - 1 in the order of (seed, epoch), the same with every compiler and library: the
/// standard fixes std::mt19937_64 and std::seed_seq, but neither std::shuffle nor its
/// distributions. Checkpoints and reproducible runs depend on it: never change it.
std::vector<std::size_t> permutation(std::size_t size, std::uint64_t seed, std::uint64_t epoch);

}  // namespace ronde::detail

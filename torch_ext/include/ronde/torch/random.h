// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/serialize/archive.h>

#include <cstdint>

#include "ronde/options.h"

namespace ronde {

/// Returns the seed of one rank, which depends on (seed, rank) alone, on every platform and number
/// of ranks. Its 64 bits are those of SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable
/// pseudorandom number generators", OOPSLA 2014) started at h, itself the first number of
/// SplitMix64 started at `seed`; but as LibTorch's generator of the CPU uses the lower 32 bits
/// only, these are h + rank mixed by a bijection (the finaliser of A. Appleby's MurmurHash3), so
/// that no two of up to 2^32 ranks share them.
std::uint64_t rank_seed(std::uint64_t seed, int rank) noexcept;

/// Seeds LibTorch's default generators, of the CPU and of all other devices, with
/// rank_seed(seed, this rank within the set): each rank then draws its own numbers, as dropout and
/// augmentation need. Call it on every rank, after everything that must be drawn alike (or
/// broadcast_parameters). Local. A rank outside the set throws UsageError.
void seed_all_ranks(std::uint64_t seed, ProcessSet process_set = {});

/// Writes the states of LibTorch's default generators (the CPU's and those of all CUDA devices that
/// LibTorch sees) of all ranks to the root's archive, as "random_state"; other ranks' archives
/// stay unchanged. Collective. Throws UsageError on all ranks if one fails, GroupError.
void save_random_state(torch::serialize::OutputArchive& archive,
                       const BroadcastOptions& options = {});

/// Restores each rank's generators from the root's archive; archives of other ranks are not read.
/// Collective. Throws UsageError on all ranks, and changes no generator, if the archive has no such
/// state, or that of another number of ranks or devices: call seed_all_ranks() then. GroupError.
void load_random_state(torch::serialize::InputArchive& archive,
                       const BroadcastOptions& options = {});

}  // namespace ronde

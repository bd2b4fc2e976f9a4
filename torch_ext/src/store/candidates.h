// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "torch_ext/src/store/manifest.h"

// Which checkpoint all ranks take up, of those that each sees. Pure: every rank computes the same
// from the same sightings.
namespace ronde::store {

/// A checkpoint that some rank has seen.
struct Candidate {
  Name name = {};
  Manifest manifest = {};
  /// For each part of the manifest the ranks that may read it, each on another host.
  std::vector<std::vector<int>> readers = {};
  /// Why it cannot be used; empty: it can, unless a file turns out to be damaged.
  std::string problem = {};
};

/// Newest first. Saves that ended half way on every host are left out: they never were
/// checkpoints. `all`: what each rank has seen. `host_of`: the host of each rank.
std::vector<Candidate> find_candidates(const std::vector<std::vector<Sighting>>& all,
                                       const std::vector<int>& host_of);

}  // namespace ronde::store

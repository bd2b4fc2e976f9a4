// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "tools/bench/subjects/peers.h"

namespace ronde::tool {

/// The time of each of several calls, in microseconds.
using Samples = std::vector<double>;

/// The smallest sample that at least `share` of all do not exceed (the nearest rank, no
/// interpolation). At least one sample.
double percentile(Samples samples, double share);
double median(const Samples& samples);

/// One of several ways to do the same thing.
struct Contender {
  std::function<void()> call;
  std::function<void()> prepare = [] {};  ///< before each call, not timed
};

/// Lets the contenders take turns, `warmup` + `iterations` times, and returns the samples of each
/// of the later ones: all of them meet what the machine does for a while. Who begins changes from
/// turn to turn. All ranks begin a call together, after a barrier of MPI's; a sample is the longest
/// time of all ranks. Collective.
std::vector<Samples> take_turns(Peers& peers, const std::vector<Contender>& contenders, int warmup,
                                int iterations);

}  // namespace ronde::tool

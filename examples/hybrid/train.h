// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ronde/grid.h>

#include <vector>

#include "hybrid_options.h"
#include "model.h"

namespace hybrid {

/// The axes of the grid of ranks. Neighbours along the second share a host, where there is one for
/// them: they exchange more.
enum Axis { kData, kModel };

/// Trains, and says on rank 0 how it goes. Returns the loss of each step, of the whole batch; the
/// same on all ranks. Collective.
std::vector<double> train(Net& net, const ronde::Grid& grid, const Options& options);

}  // namespace hybrid

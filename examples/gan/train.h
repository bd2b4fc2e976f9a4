// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <vector>

#include "gan_options.h"

namespace gan {

struct Networks {
  torch::nn::Sequential generator;      ///< noise to points
  torch::nn::Sequential discriminator;  ///< points to a score: above 0, it takes them for real
};

/// With random weights, in 64-bit floats.
Networks make_networks();

/// Trains, and says on rank 0 how it goes. Returns the losses of discriminator and generator of
/// each step, one after the other; the same on all ranks. Collective.
std::vector<double> train(const Networks& networks, const Options& options);

}  // namespace gan

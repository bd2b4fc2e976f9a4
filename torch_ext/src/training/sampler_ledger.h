// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "ronde/torch/distributed_sampler.h"

namespace ronde {

/// A place in the samples: the first `position` of an epoch, over all ranks, lie before it.
struct EpochPlace {
  std::size_t epoch = 0;
  std::size_t position = 0;
};

namespace detail {

/// Which batches of a sampler the steps have used: a loader with workers takes them ahead.
struct SamplerLedger {
  /// The ranks are those of the present group.
  static void regroup(DistributedSampler& sampler);
  /// Records the batches that the sampler deals from now on.
  static void record(DistributedSampler& sampler);
  /// Returns the number of batches that no step has used.
  static std::size_t unused(const DistributedSampler& sampler);
  /// A step has used the next `batches`, which were dealt; returns the place behind them.
  static EpochPlace use(DistributedSampler& sampler, std::size_t batches);
};

}  // namespace detail
}  // namespace ronde

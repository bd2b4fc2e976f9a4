// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ronde/algorithms.h"
#include "tools/bench/base/gradient_lists.h"

namespace ronde::tool {

/// Returns the layers of a model of gradient_lists(), "mlp:784,1024,10" (linear layers between so
/// many features), or of a file: a layer a line, "inputs outputs [kernel [places_in places_out
/// [vectors]]]". Throws UsageError.
std::vector<Layer> layers_of(const std::string& model);

/// The axes of a division of ranks, the last one fastest.
enum Axis : std::size_t { kStages, kData, kRows, kColumns };

/// The sizes of a ronde::Grid, by Axis. The batch is divided among replicas (kData), the layers of
/// a replica among stages, and each weight matrix of a stage among rows x columns: its inputs over
/// the rows, its outputs over the columns, and the other way round in every other layer, which so
/// reads what the one before has written.
using Division = std::array<std::size_t, 4>;

/// A training step, and where it runs.
struct TrainingStep {
  std::vector<Layer> layers = {};
  std::size_t ranks = 1, ranks_per_host = 1;
  std::size_t batch = 256;        ///< samples of a step
  std::size_t micro_batches = 4;  ///< of a replica's samples, where there are several stages
  LinkCosts costs = {};           ///< of a link between hosts; within a host no time passes
};

/// Bytes that a rank sends in a step.
struct Traffic {
  std::uint64_t data = 0;      ///< gradients, to other replicas
  std::uint64_t tensor = 0;    ///< partial results and gradients, within a stage
  std::uint64_t pipeline = 0;  ///< activations and their gradients, to other stages

  std::uint64_t total() const noexcept { return data + tensor + pipeline; }
};

/// The communication of a division.
struct Volume {
  Division division;
  std::vector<Traffic> stages;  ///< of a rank of each
  double seconds = 0;           ///< of a step in which nothing is computed

  const Traffic& busiest() const { return *std::ranges::max_element(stages, {}, &Traffic::total); }
};

/// Returns all divisions that have a layer for each stage and a sample for each micro-batch.
std::vector<Division> divisions_of(const TrainingStep& step);

/// Predicts the communication of a step in f32, by the model of Tensor3D (S. Singh et al.,
/// "Communication-minimizing Asynchronous Tensor Parallelism", 2023, arXiv:2305.13525): a layer
/// sums its outputs over the ranks among which its inputs are divided; backward sums the gradients
/// of the inputs over those among which the outputs are, except for the model's own inputs; the
/// gradients of parameters are summed over the replicas. The algorithms are those of
/// AlgorithmTable. The bytes are exact where parts are even and groups are powers of two; else they
/// are those of the largest part. The time is Hockney's. Ranks share the link of their host.
/// Micro-batches pass the stages as in GPipe, all forward and then all back: the first one at the
/// pace of each stage, the others at that of the slowest.
Volume volume_of(const TrainingStep& step, const Division& division);

}  // namespace ronde::tool

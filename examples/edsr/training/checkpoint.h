// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <torch/optim/adam.h>

#include "model.h"

namespace edsr {

/// What must be the same for a run to go on from a checkpoint of another.
struct RunConfig {
  EdsrOptions network;
  std::int64_t batch = 0;
  std::int64_t patch = 0;
  std::int64_t samples = 0;  ///< per epoch; follows from the number of photographs
  std::uint64_t seed = 0;

  std::string to_json() const;
  static RunConfig from_json(const std::string& text);
};

/// How far training has come.
struct Position {
  std::int64_t step = 0;           ///< optimizer steps done
  std::int64_t epoch = 0;          ///< the current pass over the samples
  std::int64_t step_in_epoch = 0;  ///< steps done of it
  double seconds = 0;              ///< spent training
  double loss_first = 0;           ///< loss of the very first step
};

/// Writes network, optimizer, position and configuration to a LibTorch archive beside `path`, makes
/// it durable, then renames it over `path`: a reader sees the old or the new checkpoint, never a
/// part. Throws InputError when it cannot be written; the old one is then still there.
void save_checkpoint(const std::filesystem::path& path, const Edsr& network,
                     const torch::optim::Adam& optimizer, const Position& position,
                     const RunConfig& config);

/// Loads network and optimizer and returns the position. Throws InputError, naming the file, for
/// one that is missing, truncated, no checkpoint of this program, or of a differing configuration;
/// the text says what differs.
Position load_checkpoint(const std::filesystem::path& path, Edsr& network,
                         torch::optim::Adam& optimizer, const RunConfig& config);

}  // namespace edsr

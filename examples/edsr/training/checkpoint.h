// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ronde/torch.h>

#include <cstdint>
#include <filesystem>
#include <string>

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

/// What differs, and empty if nothing does: "batch 8 there, 16 here".
std::string differences(const RunConfig& saved, const RunConfig& wanted);

/// How far training has come.
struct Position {
  std::int64_t step = 0;           ///< optimizer steps done
  std::int64_t epoch = 0;          ///< the current pass over the samples
  std::int64_t step_in_epoch = 0;  ///< steps done of it
  double seconds = 0;              ///< spent training
  double loss_first = 0;           ///< loss of the very first step
  double loss_last = 0;            ///< of the last one
};

/// Keeps network, optimizer, position and configuration. All calls are collective.
class RunCheckpoint {
 public:
  RunCheckpoint(const std::filesystem::path& folder, Edsr& network, torch::optim::Adam& adam,
                const RunConfig& config);

  /// Where the newest checkpoint stands; the beginning if there is none. Throws InputError, saying
  /// what differs, if it is of another run, and what ronde::Checkpoint::resume() throws.
  Position resume();

  void save(const Position& position);

  /// A rank has got SIGTERM: save, and leave.
  bool should_stop() { return checkpoint_.should_stop(); }

  /// Returns once the last one is complete.
  void finish() { checkpoint_.wait(); }

 private:
  std::filesystem::path folder_;
  RunConfig wanted_;
  std::string config_;
  Position position_;
  ronde::Checkpoint checkpoint_;
};

}  // namespace edsr

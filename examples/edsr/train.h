// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "edsr_options.h"
#include "model.h"
#include "photographs.h"

namespace edsr {

/// How far training has come.
struct Position {
  std::int64_t step = 0;           ///< optimizer steps done
  std::int64_t epoch = 0;          ///< the current pass over the samples
  std::int64_t step_in_epoch = 0;  ///< steps done of it
  double seconds = 0;              ///< spent training
  double loss_first = 0;           ///< loss of the very first step
  double loss_last = 0;            ///< of the last one
};

/// The outcome of a training run.
struct TrainingResult {
  Position position;
  std::int64_t images = 0;  ///< patches trained on by this run, all ranks together
  double seconds = 0;       ///< that it took
  bool is_stopped = false;  ///< by SIGTERM, before the budget was used
};

/// Returns the folder of --checkpoint, by default in that of --output.
std::filesystem::path checkpoint_folder(const Options& options);

/// Returns whether a budget of steps or minutes is used up.
bool is_used_up(const Options& options, const Position& position);

/// Returns the learning rate after so many steps. It falls by steps alone, whatever the budget: a
/// slow machine learns as much from an image.
double learning_rate(const Options& options, std::int64_t step);

/// Trains on `device` with Adam on the mean absolute error until the budget of steps or minutes is
/// used, `gain` (in dB, collective) reaches --until-gain, or SIGTERM comes, and leaves a
/// checkpoint. Collective; every rank holds the same photographs and gets the same result. Throws
/// InputError (resuming is refused, training diverges), ronde::UsageError if the ranks' networks
/// differ at the end, and ronde::GroupError when another rank fails.
TrainingResult train(Edsr& network, std::shared_ptr<const std::vector<Photograph>> photographs,
                     torch::Device device, const Options& options,
                     const std::function<double()>& gain);

}  // namespace edsr

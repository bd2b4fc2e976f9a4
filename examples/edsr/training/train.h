// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "edsr_options.h"
#include "images/photographs.h"
#include "model.h"
#include "training/checkpoint.h"

namespace edsr {

/// What training leaves in the folder of --output.
inline constexpr const char* kCheckpointName = "checkpoint";  ///< a folder, without --checkpoint
inline constexpr const char* kLossCurveName = "loss.csv";
inline constexpr const char* kScalarsName = "scalars.csv";

/// What a training run did.
struct TrainingResult {
  Position position;
  std::int64_t images = 0;  ///< patches trained on by this run, all ranks together
  double seconds = 0;       ///< that it took
  bool is_stopped = false;  ///< by SIGTERM, before the budget was used
};

/// The folder of --checkpoint.
std::filesystem::path checkpoint_folder(const Options& options);

/// What of the run must stay the same for its checkpoint to be resumed.
RunConfig run_config(const Options& options, std::size_t photographs);

/// Trains on `device` with Adam on the mean absolute error until the budget of steps or minutes is
/// used, `gain` (in dB, collective) reaches --until-gain, or SIGTERM comes, and leaves a
/// checkpoint; says so where the one that it resumes has used the budget. Collective; every rank
/// holds the same photographs and gets the same result. Throws InputError (resuming is refused,
/// output cannot be written, training diverges) and ronde::GroupError when another rank fails.
TrainingResult train(Edsr& network, std::shared_ptr<const std::vector<Photograph>> photographs,
                     torch::Device device, const Options& options,
                     const std::function<double()>& gain);

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/gpu_reading.h"
#include "ronde/init_options.h"
#include "ronde/plugin/factory.h"
#include "ronde/process_set.h"
#include "ronde/runtime.h"

namespace ronde {

/// Ranks of a world that meet through it, to make another one.
struct RanksOfSet {
  ProcessSet of;
  std::vector<int> ranks;  ///< within `of`
};

/// Who starts a Runtime: init(), or a World.
struct StartRequest {
  InitOptions init = {};
  std::string name = {};                 ///< RuntimeOptions::world_name
  std::uint32_t world = 0;               ///< RuntimeOptions::world
  std::optional<RanksOfSet> ranks = {};  ///< of a World, in place of a way of `init`
  std::string problem = {};              ///< why this rank cannot start, for all ranks
  StallCallback on_stall = nullptr;
  std::function<void()> on_program_finalize = nullptr;  ///< as in MpiOptions
};

/// The options of a Runtime that starts, and warnings for the user.
struct StartOptions {
  RuntimeOptions runtime;
  std::vector<std::string> warnings;
  /// The ranks meet on the thread that starts the Runtime.
  bool meets_in_init = false;
  bool is_guest = false;  ///< ronde::is_guest()
  /// Of the backends that the Runtime makes in the end.
  std::shared_ptr<ReadGpu> read_gpu = std::make_shared<ReadGpu>();
};

/// Reads the environment and puts the backends together. Nonsense does not throw but ends in
/// RuntimeOptions::config_error, so that the other ranks learn of it; UsageError if `request`
/// leaves open how to meet them.
StartOptions load_start_options(const StartRequest& request, const BackendRegistry& registered);

/// Meets the other ranks. Logs the warnings on rank 0; on every rank if it fails.
std::unique_ptr<Runtime> start_runtime(StartOptions start);

/// Throws UsageError if a program may not register `factory` as `name`.
void check_backend(const std::string& name, const BackendFactory& factory);

}  // namespace ronde

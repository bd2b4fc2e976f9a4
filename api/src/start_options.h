// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu_reading.h"
#include "ronde/init_options.h"
#include "ronde/plugin/factory.h"
#include "ronde/runtime.h"

namespace ronde {

/// The options of a Runtime that init starts, and warnings for the user.
struct StartOptions {
  RuntimeOptions runtime;
  std::vector<std::string> warnings;
  /// The ranks meet on the thread that calls init.
  bool meets_in_init = false;
  bool is_guest = false;  ///< ronde::is_guest()
  /// Of the backends that the Runtime makes in the end.
  std::shared_ptr<ReadGpu> read_gpu = std::make_shared<ReadGpu>();
};

/// Reads the environment and puts the backends together. Nonsense does not throw but ends in
/// RuntimeOptions::config_error, so that the other ranks learn of it; UsageError if `init` leaves
/// open how to meet them. `on_program_finalize`: as in MpiOptions.
StartOptions load_start_options(const InitOptions& init, const BackendRegistry& registered,
                                StallCallback on_stall,
                                std::function<void()> on_program_finalize = nullptr);

/// Meets the other ranks. Logs the warnings on rank 0; on every rank if it fails.
std::unique_ptr<Runtime> start_runtime(StartOptions start);

/// Throws UsageError if a program may not register `factory` as `name`.
void check_backend(const std::string& name, const BackendFactory& factory);

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/compose.h"
#include "backends/gpu_reading.h"
#include "ronde/init_options.h"
#include "ronde/plugin/factory.h"
#include "ronde/runtime.h"

namespace ronde {

/// A start of the world of init() or of a World.
struct StartOptions {
  // What is asked for; also world, sets_before, world_name, on_stall and config_error of `runtime`.
  InitOptions init = {};
  /// The most that RONDE_INIT_TIMEOUT_S may be.
  std::chrono::duration<double> longest_meeting = std::chrono::duration<double>::max();
  /// Lets the ranks of a World meet, in place of a way of `init`.
  std::function<MetRanks(std::chrono::nanoseconds timeout)> meet = nullptr;
  std::function<void()> on_program_finalize = nullptr;  ///< as in MpiOptions

  // What load_start_options() fills in.
  RuntimeOptions runtime = {};
  std::vector<std::string> warnings = {};  ///< for the user
  bool meets_in_init = false;              ///< BuiltIn::meets_in_init
  bool is_guest = false;                   ///< ronde::is_guest()
  /// Belongs to the backends that the Runtime makes in the end.
  std::shared_ptr<ReadGpu> read_gpu = std::make_shared<ReadGpu>();
};

/// Reads the environment and composes the backends. An invalid configuration does not throw but is
/// kept in RuntimeOptions::config_error, so that the other ranks get it too. Throws UsageError if
/// `start` does not say how the ranks meet.
void load_start_options(StartOptions& start, const BackendRegistry& registered);

/// Meets the other ranks. Logs the warnings on rank 0; on every rank if it fails.
std::unique_ptr<Runtime> start_runtime(StartOptions& start);

/// Throws UsageError if a program may not register `factory` as `name`.
void check_backend(const std::string& name, const BackendFactory& factory);

}  // namespace ronde

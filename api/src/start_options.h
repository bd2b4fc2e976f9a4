// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/compose.h"
#include "backends/gpu_reading.h"
#include "ronde/init_options.h"
#include "ronde/plugin/factory.h"
#include "ronde/process_set.h"
#include "ronde/runtime.h"

namespace ronde {

/// Ranks of a world that make another one.
struct RanksOfSet {
  ProcessSet of;
  std::vector<int> ranks;  ///< within `of`
};

/// Lets the ranks of a set, each of which calls it, meet by messages of the world of the set.
/// `name` is that of the world that they make. Throws UsageError unless they are different ranks of
/// the set, this one among them.
MetRanks meet_within(const RanksOfSet& ranks, const std::string& name,
                     std::chrono::nanoseconds timeout);

/// What init() or a World asks for.
struct StartRequest {
  InitOptions init = {};
  std::string name = {};          ///< RuntimeOptions::world_name
  std::uint32_t world = 0;        ///< RuntimeOptions::world
  std::uint32_t sets_before = 0;  ///< RuntimeOptions::sets_before
  /// The most that RONDE_INIT_TIMEOUT_S may be.
  std::chrono::duration<double> longest_meeting = std::chrono::duration<double>::max();
  std::optional<RanksOfSet> ranks = {};  ///< of a World, in place of a way of `init`
  std::string problem = {};              ///< why this rank cannot start, for all ranks
  StallCallback on_stall = nullptr;
  std::function<void()> on_program_finalize = nullptr;  ///< as in MpiOptions
};

/// The options of a Runtime that is about to start, and warnings for the user.
struct StartOptions {
  RuntimeOptions runtime;
  std::vector<std::string> warnings;
  /// The ranks meet on the thread that starts the Runtime.
  bool meets_in_init = false;
  bool is_guest = false;  ///< ronde::is_guest()
  /// Belongs to the backends that the Runtime makes in the end.
  std::shared_ptr<ReadGpu> read_gpu = std::make_shared<ReadGpu>();
};

/// Reads the environment and composes the backends. An invalid configuration does not throw but is
/// kept in RuntimeOptions::config_error, so that the other ranks get it too. Throws UsageError if
/// `request` does not say how the ranks meet.
StartOptions load_start_options(const StartRequest& request, const BackendRegistry& registered);

/// Meets the other ranks. Logs the warnings on rank 0; on every rank if it fails.
std::unique_ptr<Runtime> start_runtime(StartOptions start);

/// Throws UsageError if a program may not register `factory` as `name`.
void check_backend(const std::string& name, const BackendFactory& factory);

}  // namespace ronde

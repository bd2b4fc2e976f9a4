// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backends/socket/launched/launch.h"
#include "ronde/config.h"
#include "ronde/plugin/transport.h"

/// The transport of ranks that torchrun, Slurm or the like started, for programs that put a Runtime
/// together.
namespace ronde {

struct LaunchedOptions {
  Launch launch;
  /// How long to wait for the other ranks, in seconds (RONDE_INIT_TIMEOUT_S).
  double init_timeout_s = 120.0;
  /// An identity other than this host's (RONDE_HOST_ID). Ranks of different ones use TCP.
  std::string host = {};
  /// TCP may use 127.0.0.1, which another machine could not.
  bool offer_loopback = false;
  /// Refuse ranks of several hosts: there is nothing to move their data with.
  bool one_host = true;
  std::string job_key = {};  ///< RONDE_JOB_KEY
  PortRange ports = {};      ///< RONDE_PORT_RANGE
  /// Is told what the user should know although the start goes on, unless it is null.
  std::function<void(const std::string&)> warn = nullptr;
};

/// Makes the transport: rank 0 listens at the launch's port until all others have connected, on the
/// thread that calls it. Throws UsageError, on every rank, where variables make no sense or the
/// ranks disagree, as key_value_transport_factory(). Throws GroupError that names a rank which is
/// missing, lost or silent; and rank 0 if the port is taken, or this rank if rank 0 refuses it
/// (another size or key, a number that was given twice), or cannot be found by name.
std::function<std::unique_ptr<Transport>()> launched_transport_factory(LaunchedOptions options);

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/mpi/mpi.h"
#include "backends/vendor/api_table.h"
#include "backends/vendor/wrapped_calls.h"
#include "ronde/plugin/factory.h"

namespace ronde {

/// Makes a backend of the same kind as mpi_backend_factory(), beside that one: for messages in
/// memory of GPUs, which have to be tried out before they are relied on. Its `problem` is the
/// library's own answer to whether it takes addresses of GPUs, asked once MPI is initialised. It
/// serves all ranks alone: the messages of process sets have one communicator, on which those of a
/// trial that failed would meet others.
BackendFactory gpu_aware_mpi_factory(
    const MpiOptions& options, const vendor::SymbolLookup& symbols = vendor::dynamic_symbols());

/// Surrounds every call of MPI that Ronde makes in this process, as MPI may progress messages in
/// memory of GPUs in any of them.
vendor::WrapCalls wrap_mpi_calls();

}  // namespace ronde

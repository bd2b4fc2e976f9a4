// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backends/launcher.h"
#include "backends/mpi/mpi_api.h"

// Note [MPI that Ronde may only start with]
// A program that initialised MPI below MPI_THREAD_MULTIPLE lets one thread call it at a time, and
// Ronde cannot know when. But its thread is in ronde::init() while the ranks meet: so that thread
// asks MPI who they are and exchanges their addresses, and Ronde calls MPI no more until the next
// init(). What the program does with it afterwards, MPI_Finalize too, concerns Ronde no more. Data
// then moves without MPI.

namespace ronde::mpi {

/// When Ronde calls an MPI that the program has initialised: from a thread of its own until it
/// leaves, or within init alone.
enum class MpiUse { Always, ToMeet };

/// "MPI_THREAD_FUNNELED".
std::string level_name(int level);

/// Throws UsageError if the program's level is too low for `use`, or if this is not the thread that
/// it allows to call MPI.
void check_level_of_program(const MpiApi& api, MpiUse use);

/// What the program has initialised, if it was the program; nothing of an MPI that has ended.
ProgramMpi mpi_of_program(const MpiApi& api);

}  // namespace ronde::mpi

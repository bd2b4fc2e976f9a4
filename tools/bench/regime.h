// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "tools/bench/session.h"

namespace ronde::tool {

/// Where plain MPI tells the regime of the machine: MPI_Allreduce of this much in place.
inline constexpr std::size_t kRegimeBytes = std::size_t{1} << 20;

/// "near" if plain MPI takes less than 250 us for kRegimeBytes (the cores share a cache), else
/// "far".
std::string regime_of(double microseconds);

/// "near: plain MPI_Allreduce of 1 MiB took 135 us (MPI_THREAD_SERIALIZED)".
std::string regime_text(Session& session, double microseconds);

/// Measures that, where the benchmark itself does not. The session must have a baseline.
/// Collective.
double measure_regime(Session& session);

}  // namespace ronde::tool

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ronde/init_options.h"
#include "ronde/process_set.h"
#include "ronde/ronde_c.h"

namespace ronde::c {

/// The set that a program names by `number`: one of ronde_init()'s, or one that number_of() has
/// named. RONDE_E_UNKNOWN_SET for others.
ProcessSet set_of(std::uint32_t number);

/// The number by which a program names a set: its own in the world of ronde_init(), and from 2^31
/// on for others, where no two sets of this process ever have the same.
std::uint32_t number_of(ProcessSet set);

/// Ranks that a program has given.
std::vector<int> list_of(const int* ranks, int count);

/// What the program has given for a start; NULL: the defaults.
InitOptions options_of(const ronde_init_options* given);

}  // namespace ronde::c

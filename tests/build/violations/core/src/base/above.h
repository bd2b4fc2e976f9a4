// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests/build/includes.cmake has to notice: a path from this folder, and a room above it; and
// layering.cmake: a read of the clock.
#include "below.h"
#include "core/src/loop/loop.h"

inline const auto now = std::chrono::steady_clock::now();

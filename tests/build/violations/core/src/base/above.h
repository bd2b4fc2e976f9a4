// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests/build/includes.cmake has to notice: a path from this folder, and a room above it.
#include "below.h"
#include "core/src/engine/coordinator.h"

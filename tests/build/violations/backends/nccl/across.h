// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests/build/includes.cmake has to notice: a backend that includes another one.
#include "backends/cuda/cuda.h"

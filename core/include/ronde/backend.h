// SPDX-License-Identifier: Apache-2.0
#pragma once

// All headers that a backend needs.
#include "ronde/plugin/backend.h"
#include "ronde/plugin/calls.h"
#include "ronde/plugin/factory.h"

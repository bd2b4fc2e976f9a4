// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything that a backend is written with, in one header.
#include "ronde/plugin/backend.h"
#include "ronde/plugin/calls.h"
#include "ronde/plugin/factory.h"

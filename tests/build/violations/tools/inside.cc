// SPDX-License-Identifier: Apache-2.0
// What tests/build/includes.cmake has to notice: a tool that includes what is inside core.
#include "core/src/base/log.h"

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/src/base/steps.h"

// The names under which backends for devices know Steps.
namespace ronde::device {

using ronde::SteppedOperation;
using ronde::Steps;
using ronde::until;
using ronde::until_finished;

}  // namespace ronde::device

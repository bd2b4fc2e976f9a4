// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/src/base/thread_scope.h"

namespace ronde {

/// The engine's loop, or a callback: calls there have no certain place in the order of the
/// program's calls.
using EngineScope = ThreadScope<struct EngineLoop>;

}  // namespace ronde

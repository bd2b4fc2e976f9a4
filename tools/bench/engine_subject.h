// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tools/bench/subject.h"

namespace ronde::tool {

/// Ronde's public functions, between ronde::init() and ronde::shutdown(). `device`: of the buffers.
/// Throws UsageError where no backend serves them.
std::unique_ptr<Subject> make_engine(DeviceKind device);

}  // namespace ronde::tool

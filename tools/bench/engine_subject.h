// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "subject.h"

namespace ronde::tool {

/// Ronde's public functions, between ronde::init() and ronde::shutdown().
std::unique_ptr<Subject> make_engine();

}  // namespace ronde::tool

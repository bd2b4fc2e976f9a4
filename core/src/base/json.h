// SPDX-License-Identifier: Apache-2.0
// nlohmann-json under a name of Ronde's libraries: a program may have another version, and the
// linker would merge functions of the two. See also core/src/base/fmt.h.
#pragma once

#define nlohmann ronde_nlohmann
#include <nlohmann/json.hpp>
#undef nlohmann

namespace nlohmann = ronde_nlohmann;

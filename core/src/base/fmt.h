// SPDX-License-Identifier: Apache-2.0
// fmt under a name of Ronde's libraries: see core/src/base/json.h.
#pragma once

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#define fmt ronde_fmt
#include <spdlog/fmt/fmt.h>
#undef fmt

namespace fmt = ronde_fmt;

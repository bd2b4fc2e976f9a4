// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/log.h"
#include "ronde/ronde.h"

namespace ronde::detail {

/// Where the warnings of this rank go.
inline Logger rank_log() {
  const Runtime& runtime = default_runtime();
  return Logger(parse_log_level(runtime.config().log_level), runtime.topology().rank);
}

}  // namespace ronde::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/log.h"
#include "ronde/ronde.h"

namespace ronde::detail {

/// Where the warnings of this rank in the world of `set` go.
inline Logger rank_log(ProcessSet set) {
  const Runtime& runtime = runtime_of(set);
  return Logger(parse_log_level(runtime.config().log_level), runtime.topology().rank,
                runtime.world_name());
}

}  // namespace ronde::detail

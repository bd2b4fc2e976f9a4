// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/launched_rank.h"

#include <optional>

#include "backends/launcher.h"

namespace ronde::tool {

int launched_rank() {
  const EnvironmentLookup variables = process_environment();
  for (const char* const name : {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const std::optional<int> rank = detail::number_in(variables, name)) return *rank;
  }
  return 0;
}

}  // namespace ronde::tool

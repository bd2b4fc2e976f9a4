// SPDX-License-Identifier: Apache-2.0
#include "launched_rank.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "backends/launcher.h"

namespace ronde::tool {

int launched_rank() {
  const auto variable = [](const std::string& name) -> std::optional<std::string> {
    const char* const text = std::getenv(name.c_str());
    return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
  };
  for (const char* const name : {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const std::optional<int> rank = detail::number_in(variable, name)) return *rank;
  }
  return 0;
}

}  // namespace ronde::tool

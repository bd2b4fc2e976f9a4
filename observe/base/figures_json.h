// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/src/base/json.h"
#include "ronde/figures.h"

namespace ronde {

/// Files have microseconds.
constexpr double us_of(std::int64_t ns) noexcept {
  return static_cast<double>(ns) * 1e-3;
}

enum class Histograms { With, Without };

/// Figures as the object that docs/profiling.md describes, and back. `rank`: -1 for those of
/// several ranks. The inverse throws nlohmann::json::exception on anything else, and needs
/// histograms.
nlohmann::ordered_json to_json(const Figures& figures, int rank,
                               Histograms histograms = Histograms::With);
/// Parts of counters, each an object.
nlohmann::ordered_json counters_json(const Stats& stats);
Figures figures_from_json(const nlohmann::ordered_json& json);

}  // namespace ronde

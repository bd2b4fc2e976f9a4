// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/src/base/json.h"
#include "ronde/figures.h"

namespace ronde {

/// Files have microseconds.
constexpr double us_of(std::int64_t ns) noexcept {
  return static_cast<double>(ns) * 1e-3;
}

enum class Histograms { With, Without };

/// Writes figures as JSON: the one layout of profiles, timelines and answers to `ronde top`.
/// `rank`: -1 for the figures of several ranks.
nlohmann::ordered_json to_json(const Figures& figures, int rank,
                               Histograms histograms = Histograms::With);
/// Reads what to_json() has written; distributions without their histograms have sums, but no
/// counts and quantiles. Throws nlohmann::json::exception where a member is missing or has another
/// type, Error for numbers that no run can have.
Figures figures_from_json(const nlohmann::ordered_json& json);
/// Reads a count. Throws Error unless it is a whole number that is not negative.
std::uint64_t count_from_json(const nlohmann::ordered_json& json);
/// Reads a rank, or -1. Throws as figures_from_json().
int rank_from_json(const nlohmann::ordered_json& json);

/// Writes and reads series: {name: [[seconds, number or null], ...], ...}. Throws Error where
/// seconds are negative or descend, else as figures_from_json().
/// @{
nlohmann::ordered_json series_json(const std::map<std::string, Series>& all);
std::map<std::string, Series> series_from_json(const nlohmann::ordered_json& json);
/// @}

/// Writes the parts of counters, each as an object.
nlohmann::ordered_json counters_json(const Stats& stats);

}  // namespace ronde

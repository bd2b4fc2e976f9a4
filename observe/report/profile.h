// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/src/base/json.h"
#include "ronde/figures.h"

namespace ronde {

/// What is known about a run: the figures of its ranks, and the settings under which they arose.
/// RONDE_PROFILE writes it; `ronde prof` reads it, or collects it from the files of a timeline.
struct Profile {
  std::string source;  ///< the file or folder that it was read from; empty: this process
  std::string framework = "Ronde";
  std::string version;
  std::string world;
  int ranks = 1;
  int hosts = 1;
  std::string failure;               ///< what ended the run, if it failed
  std::vector<std::string> remarks;  ///< what a reader must know about the files, a sentence each
  std::map<std::string, std::string> config;
  std::map<std::string, std::string> backends;
  std::map<int, Figures> per_rank;  ///< of ranks whose figures are known
  Figures merged;                   ///< of these ranks together

  /// Adds the figures of a rank.
  void add(int rank, Figures figures);
  /// The ranks without figures.
  std::vector<int> missing_ranks() const;
  /// How many ranks' counts are in `merged`: at least 1.
  double measured_ranks() const {
    return static_cast<double>(std::max<std::size_t>(per_rank.size(), 1));
  }
  /// Converts a count or a time of all ranks to that of one rank in one step; of the whole run
  /// where steps were not counted.
  double a_step(double sum) const {
    return sum / measured_ranks() / std::max(1.0, static_cast<double>(merged.steps));
  }
  /// Sums the counter over `part` and the parts "PART of set N". 0 without any.
  double counter(const std::string& part, const std::string& name) const;
  /// The setting of that name, or an empty text where it is not known.
  std::string setting(const std::string& name) const;
  /// RONDE_FUSION_BYTES in bytes, or -1 where it is not known.
  double fusion_bytes() const;
};

/// The layout of a profile's file (docs/profiling.md).
inline constexpr int kProfileLayout = 1;

nlohmann::ordered_json to_json(const Profile& profile);
/// Reads what to_json() has written. Throws as figures_from_json().
Profile profile_from_json(const nlohmann::ordered_json& json);

/// Reads a run report (docs/notes/run_report.md), which the profile of a run with the figures of
/// all ranks has as its member "run_report". Returns a profile whose figures, of all ranks, stand
/// as those of rank 0. Throws as figures_from_json().
Profile profile_from_report(const nlohmann::ordered_json& json);

}  // namespace ronde

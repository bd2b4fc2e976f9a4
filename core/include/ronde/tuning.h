// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ronde {

/// Settings that a search found, and the job that they are for (RONDE_TUNED).
struct TunedSettings {
  std::map<std::string, std::string> values;  ///< of the variables, by name
  bool finished = true;                       ///< false: only a start for a further search
  /// The model: a signature of what its steps submit; empty, or no ranks: any.
  /// @{
  std::string model;
  int ranks = 0;
  int hosts = 0;
  /// @}
  double step_s = 0;        ///< with these settings; 0: not known
  double start_step_s = 0;  ///< with the settings at the start of the search
  /// The search goes on from the file, which it may replace. Not in the file.
  bool keeps_file = false;
};

/// One measurement of a search (RONDE_AUTOTUNE_LOG).
struct TuneTrial {
  std::size_t number = 0;                     ///< from 1
  std::size_t step = 0;                       ///< steps since the search began
  std::string phase;                          ///< "arms", "neighbours" or "confirm"
  std::map<std::string, std::string> values;  ///< of the variables, by name
  double step_s = 0;                          ///< the mean of the faster half of its steps
  std::size_t steps = 0;                      ///< number of measured steps
};

/// Options of a Runtime that tunes itself, beside its Config. Those of rank 0 apply.
struct TuningOptions {
  /// Variables that the user has set, which are not changed.
  std::vector<std::string> fixed;
  /// The settings in the file RONDE_TUNED; nullopt if there is none, or it cannot be used.
  std::optional<TunedSettings> known;
  /// Called by the loop of rank 0 after each measurement, and when there are settings to keep. May
  /// be empty; must not throw.
  /// @{
  std::function<void(const TuneTrial&)> on_trial;
  std::function<void(const TunedSettings&)> on_tuned;
  /// @}
};

}  // namespace ronde

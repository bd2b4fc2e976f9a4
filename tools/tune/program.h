// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ronde/tuning.h"

namespace ronde::tool {

/// What one run of the program says of itself in its profile.
struct RunReport {
  std::string problem;  ///< not empty: why the rest does not count
  double step_s = 0;    ///< mean, without the slowest
  std::size_t steps = 0;
  int ranks = 0;
  int hosts = 0;
  bool has_gpus = false;
  TunedSettings key;  ///< for whom the settings are, as the run has filled it in
};

/// Runs a command with variables of Ronde, and reads its profile.
///
/// Thread-safety: none.
class Program {
 public:
  /// `fewest_steps`: a run of fewer does not count.
  Program(std::vector<std::string> command, std::size_t fewest_steps);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Throws Error if the command cannot be started at all.
  RunReport run(const std::map<std::string, std::string>& variables) const;

 private:
  std::string start_and_wait(const std::map<std::string, std::string>& variables) const;
  RunReport read_profile() const;

  const std::vector<std::string> command_;
  const std::size_t fewest_steps_;
  const std::string folder_;  ///< of its files, removed in the end
};

}  // namespace ronde::tool

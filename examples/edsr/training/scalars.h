// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

#include <ronde/figures.h>

namespace edsr {

/// Where the time goes while training runs: ronde::figures() of rank 0 as a CSV file.
class Scalars {
 public:
  /// As open_step_table() on rank 0.
  Scalars(std::filesystem::path path, std::int64_t last_step);

  /// A line on the steps since the last one. Nothing on other ranks.
  void write(std::int64_t step, double loss);

 private:
  std::filesystem::path path_;
  std::ofstream file_;  ///< open on rank 0 only
  ronde::Figures before_;
};

}  // namespace edsr

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
  /// Adds to the file, or replaces it. Throws InputError on rank 0 when it cannot be written.
  Scalars(std::filesystem::path path, bool add);

  /// A line on the steps since the last one. Nothing on other ranks.
  void write(std::int64_t step, double loss);

 private:
  const std::filesystem::path path_;
  std::ofstream file_;  ///< open on rank 0 only
  ronde::Figures before_;
};

}  // namespace edsr

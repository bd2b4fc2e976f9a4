// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/examples/edsr/support.h"
#include "tests/support/processes/launch.h"

namespace edsr::testing {

using ronde::test::Words;

/// The words of a text.
Words split(const std::string& text);

/// A folder with eight photographs in "data", and what runs of the program on them leave.
class Workspace : public TemporaryFolder {
 public:
  Workspace() { make_photographs(*this / "data", 8); }

  /// The options of a small, quick run into the folder `output`, and more of them.
  Words options(const std::string& output, const std::string& more,
                const std::string& data = "data") const;

  /// Runs with these options and requires success; what was printed.
  std::string train(int ranks, const std::string& output, const std::string& more) const;

  /// The third column of the loss.csv that a run has left in `output`.
  std::vector<double> losses(const std::string& output) const;
};

}  // namespace edsr::testing

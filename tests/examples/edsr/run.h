// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/examples/edsr/support.h"
#include "tests/support/processes/launch.h"

namespace edsr::testing {

using ronde::test::Words;

/// Returns the words of a text.
inline Words split(const std::string& text) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// A folder with eight photographs in "data", and what runs of the program on them leave.
class Workspace : public TemporaryFolder {
 public:
  Workspace() { make_photographs(*this / "data", 8); }

  /// Returns the options of a small, quick run into the folder `output`, and more of them.
  Words options(const std::string& output, const std::string& more,
                const std::string& data = "data") const {
    return split("--data " + (*this / data).string() + " --output " + (*this / output).string() +
                 " --blocks 1 --features 8 --patch 12 --batch 8 --min-side 32 --held-out 2 "
                 "--lr 1e-3 --workers 1 " +
                 more);
  }

  /// Runs with these options and requires success. Returns its table (--json).
  nlohmann::json train(int ranks, const std::string& output, const std::string& more) const {
    const std::filesystem::path table = *this / "tables" / (output + ".json");
    ronde::test::launch_well(ranks, options(output, more + " --json " + table.string()));
    return nlohmann::json::parse(read_text(table));
  }
};

}  // namespace edsr::testing

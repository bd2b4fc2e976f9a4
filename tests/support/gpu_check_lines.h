// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace ronde::test {

/// What scripts/gpu_check.sh measures by one program.
struct GpuCheckLine {
  std::string program;
  std::vector<std::string> words;  ///< its arguments

  std::vector<const char*> arguments() const {
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    return pointers;
  }
};

/// All of them; `script` is its path, and results go beside `report`. Throws std::runtime_error
/// where the script fails.
std::vector<GpuCheckLine> gpu_check_lines(const std::string& script, const std::string& report);

}  // namespace ronde::test

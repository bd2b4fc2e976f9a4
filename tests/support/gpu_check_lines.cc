// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu_check_lines.h"

#include <sstream>
#include <stdexcept>

#include "tests/support/command.h"

namespace ronde::test {

std::vector<GpuCheckLine> gpu_check_lines(const std::string& script, const std::string& report) {
  const CommandResult result = run_program({script, "--commands"}, {{"GPU_CHECK_REPORT", report}});
  if (result.exit_code != 0) throw std::runtime_error(script + ": " + result.out + result.err);
  std::vector<GpuCheckLine> all;
  std::istringstream lines(result.out);
  // TITLE|RANKS|PROGRAM|ARGUMENTS
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line);
    std::string part;
    GpuCheckLine one;
    std::getline(parts, part, '|');
    std::getline(parts, part, '|');
    std::getline(parts, one.program, '|');
    while (parts >> part) one.words.push_back(part);
    all.push_back(one);
  }
  return all;
}

}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "support.h"

namespace edsr::testing {
namespace {

// Hydra would otherwise kill the survivors of a failing rank before they can say what they saw.
constexpr const char* kKeepSurvivors = "-disable-auto-cleanup ";

std::string launcher(const std::string& options) {
  // One thread a rank: the machine may have fewer cores than ranks.
  return "OMP_NUM_THREADS=1 timeout -k 5 120 " EDSR_LAUNCHER_PROGRAM " " + options;
}

std::string part(int ranks, const std::string& options) {
  return EDSR_LAUNCHER_COUNT " " + std::to_string(ranks) + " " EDSR_PROGRAM " " + options;
}

Outcome run(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  Outcome outcome;
  std::array<char, 4096> block;
  for (std::size_t got = 0; (got = std::fread(block.data(), 1, block.size(), pipe)) > 0;) {
    outcome.output.append(block.data(), got);
  }
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace

Outcome run_edsr(int ranks, const std::string& options, const std::string& launcher_options) {
  return run(launcher(launcher_options + " ") + part(ranks, options));
}

Outcome run_edsr_pair(const std::string& first, const std::string& second) {
  return run(launcher(kKeepSurvivors) + part(1, first) + " : " + part(1, second));
}

std::string quick(const std::filesystem::path& data, const std::filesystem::path& output) {
  return "--data " + data.string() + " --output " + output.string() +
         " --blocks 1 --features 8 --patch 12 --batch 8 --min-side 32 --held-out 2 --lr 1e-3 "
         "--workers 1 ";
}

std::vector<double> loss_curve(const std::filesystem::path& output) {
  std::istringstream lines(read_text(output / "loss.csv"));
  std::string line;
  std::getline(lines, line);
  std::vector<double> losses;
  while (std::getline(lines, line)) {
    losses.push_back(std::strtod(line.substr(line.rfind(',') + 1).c_str(), nullptr));
  }
  return losses;
}

}  // namespace edsr::testing

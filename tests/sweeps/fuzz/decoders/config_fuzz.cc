// SPDX-License-Identifier: Apache-2.0
// The user's variables, and what other ranks say about theirs.
#include <algorithm>
#include <map>

#include "backends/launcher.h"
#include "backends/socket/launched/launch.h"
#include "ronde/config.h"
#include "ronde/error.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

/// "NAME=value" lines, as an environment.
std::map<std::string, std::string> variables_in(std::string_view text) {
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::size_t equals = std::min(line.find('='), line.size());
    variables[std::string(line.substr(0, equals))] = line.substr(std::min(equals + 1, line.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return variables;
}

LoadedConfig load(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> names;
  for (const auto& [name, value] : variables) names.push_back(name);
  const EnvironmentLookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  foreign_launcher(lookup);
  find_launch(lookup, 0);
  return load_config(lookup, names);
}

std::string lines_of(const LoadedConfig& loaded) {
  std::string lines;
  for (const ConfigSource& source : loaded.sources)
    lines += source.name + "=" + source.value + "\n";
  return lines;
}

}  // namespace

std::vector<std::string> valid_inputs() {
  const std::string defaults = lines_of(load({}));
  return {defaults,
          group_wide_fingerprint(load({}).config),
          "RONDE_FUSION_BYTES=1.5GiB\nRONDE_CYCLE_TIME_MS=0.25\nRONDE_THREAD_AFFINITY=0,2,4\n",
          "RONDE_PROCESS_SETS=0,1;2,3\nRONDE_VISIBLE_DEVICES=GPU-8a3f,GPU-1\nRONDE_HOST_ID=a\n",
          "HOROVOD_FUSION_THRESHOLD=1000\nHOROVOD_LOG_LEVEL=fatal\nPMI_SIZE=4\nSLURM_NTASKS=2\n",
          "MASTER_ADDR=a\nMASTER_PORT=1\nWORLD_SIZE=2\nRANK=0\nLOCAL_RANK=0\n",
          "SLURM_NTASKS=2\nSLURM_PROCID=1\nSLURM_JOB_ID=7\nSLURM_STEP_ID=0\n"
          "SLURM_STEP_NODELIST=n[1-2]m[3,4],x\n"};
}

bool take(std::string_view bytes) {
  const std::string text(bytes);
  config_difference({group_wide_fingerprint({}), text});
  require(config_difference({text, text}).empty() || text.starts_with('!'),
          "a fingerprint is the same as itself");
  try {
    const std::string lines = lines_of(load(variables_in(text)));
    require(lines_of(load(variables_in(lines))) == lines,
            "a configuration is written so that it is read as the same");
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace ronde::fuzz

// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/variables.h"

#include <algorithm>
#include <cstddef>

#include "ronde/config.h"

namespace ronde::tool {
namespace {

enum class Where { Everywhere, OneHost, Hosts, Gpus };

struct Candidate {
  Where where;
  TunedVariable variable;
};

// What each does: docs/tuning.md. A change of results, of limits or of logs is no tuning.
const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> kAll = {
      {Where::Everywhere,
       {"RONDE_FUSION_BYTES",
        {"1MiB", "2MiB", "4MiB", "8MiB", "16MiB", "32MiB", "64MiB", "128MiB", "256MiB"}}},
      {Where::Everywhere, {"RONDE_CYCLE_TIME_MS", {"0", "0.5", "1", "2.5", "5", "10", "25", "50"}}},
      {Where::OneHost, {"RONDE_FREEZE_AFTER_STEPS", {"0", "3"}}},
      {Where::OneHost, {"RONDE_SYMMETRIC_HEAP_BYTES", {"0", "8GiB"}}},
      {Where::OneHost, {"RONDE_CPU_BACKEND", {"auto", "mpi"}}},
      {Where::Hosts, {"RONDE_CPU_BACKEND", {"auto", "hierarchical", "mpi"}}},
      {Where::Gpus, {"RONDE_GPU_BACKEND", {"auto", "nccl", "cuda"}}},
      {Where::Gpus, {"RONDE_NCCL_STREAMS", {"1", "2", "4"}}},
      {Where::Gpus, {"RONDE_CUDA_IPC", {"0", "1"}}},
      {Where::Gpus, {"RONDE_CUDA_IPC_SYNC", {"auto", "flags", "kernels"}}},
      {Where::Gpus, {"RONDE_CUDA_IPC_DIRECT_BYTES", {"0", "64MiB", "16MiB", "4MiB", "1MiB"}}}};
  return kAll;
}

const ConfigEntry& entry_of(const std::string& name) {
  return *std::ranges::find(config_table(), name, &ConfigEntry::name);
}

bool is_set(const std::string& name) {
  const EnvironmentLookup lookup = process_environment();
  const std::string& alias = entry_of(name).horovod_alias;
  return lookup(name) || (!alias.empty() && lookup(alias));
}

}  // namespace

std::vector<TunedVariable> tuned_variables(const RunReport& first) {
  std::vector<TunedVariable> variables;
  for (const auto& [where, variable] : candidates()) {
    const bool suits = where == Where::Everywhere || (where == Where::Gpus && first.has_gpus) ||
                       (where == Where::OneHost && first.hosts <= 1) ||
                       (where == Where::Hosts && first.hosts > 1);
    if (suits && !is_set(variable.name)) variables.push_back(variable);
  }
  return variables;
}

TuneSearch::Point defaults_of(const std::vector<TunedVariable>& variables) {
  TuneSearch::Point point;
  for (const TunedVariable& variable : variables) {
    const auto found = std::ranges::find(variable.values, entry_of(variable.name).get(Config()));
    point.push_back(static_cast<std::size_t>(found - variable.values.begin()));
  }
  return point;
}

std::map<std::string, std::string> values_at(const std::vector<TunedVariable>& variables,
                                             const TuneSearch::Point& point) {
  std::map<std::string, std::string> values;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    values[variables[i].name] = variables[i].values.at(point.at(i));
  }
  return values;
}

}  // namespace ronde::tool

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "ronde/algorithms.h"
#include "ronde/simulation.h"
#include "tools/bench/base/report.h"

namespace ronde::tool {

/// The costs of a simulation, and which of them were measured: "network.latency".
struct SimulationCosts {
  NetworkCosts network;
  HostCosts host;
  std::set<std::string> fitted;

  /// {"fitted": {"network.latency": seconds, ...}, "default": {...}}, a member of each row of
  /// `ronde bench --model`.
  Json json() const;
  /// Returns lines that say which costs are defaults, and what measures them; empty if none are.
  /// `has_links`: also those between hosts.
  std::string defaults_text(bool has_links) const;
  /// Takes those that were fitted in such a file. Throws UsageError if there are none, or unknown
  /// ones.
  void read(const std::string& path);
  /// Sets one by its name. Returns whether there is one of that name.
  bool fit(const std::string& name, double seconds);
};

/// Reads the costs of the algorithms from such a file. Throws UsageError if it has none.
LinkCosts read_link_costs(const std::string& path);

}  // namespace ronde::tool

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace example {

/// Milliseconds a step of connected and of unconnected ranks, measured one after the other.
struct Round {
  double step_ms = 0;
  double step_ms_unconnected = 0;

  double efficiency() const { return step_ms_unconnected / step_ms; }
};

/// What rounds say together: the medians of their steps, and the efficiency, which is the ratio of
/// these medians; `lowest` and `highest` are those of single rounds.
struct Efficiency {
  Round median;
  double lowest = 0;
  double highest = 0;
};

/// Of at least one round.
Efficiency summarize(const std::vector<Round>& rounds);

/// A JSON object: model, ranks, step_ms, step_ms_unconnected, efficiency (1 is perfect).
std::string to_json(const std::string& model, int ranks, const Efficiency& efficiency);

}  // namespace example

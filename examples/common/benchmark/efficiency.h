// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/benchmark/cache_use.h"

namespace example {

/// Milliseconds a step of connected and of unconnected ranks, measured one after the other; and of
/// ranks in step, if these were measured too.
struct Round {
  double step_ms = 0;
  double step_ms_unconnected = 0;
  std::optional<double> step_ms_in_step = {};

  double efficiency() const { return step_ms_unconnected / step_ms; }
  /// What is left where ranks wait for each other and exchange nothing: no exchange does better.
  /// Only if it was measured.
  double efficiency_in_step() const { return step_ms_unconnected / step_ms_in_step.value(); }
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

/// A JSON object: model, ranks, step_ms, step_ms_unconnected, efficiency (1 is perfect);
/// step_ms_in_step, if that was measured; and registration_hit_rate (1: always), if `cache` is
/// there.
std::string to_json(const std::string& model, int ranks, const Efficiency& efficiency,
                    const std::optional<CacheUse>& cache = {});

}  // namespace example

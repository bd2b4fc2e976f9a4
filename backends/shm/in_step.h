// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/topology.h"

namespace ronde::shm {

/// How the ranks meet while a group starts.
struct Meeting {
  const Topology& topology;
  /// As BackendContext::exchange.
  const std::function<std::vector<std::string>(std::string_view blob)>& exchange;
};

/// Runs `step` on every rank and returns what it returned on all of them, by rank. If it throws on
/// any, every rank throws the same GroupError: "rank 2 <goal>: <what it threw>".
std::vector<std::string> in_step(const Meeting& meeting, const std::string& goal,
                                 const std::function<std::string()>& step);

}  // namespace ronde::shm

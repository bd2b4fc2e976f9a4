// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/error.h"
#include "ronde/topology.h"

namespace ronde::shm {

/// The means of the ranks to exchange blobs while a group starts.
struct Meeting {
  const Topology& topology;
  /// As BackendContext::exchange.
  const std::function<std::vector<std::string>(std::string_view blob)>& exchange;
};

/// A step that failed on a rank. Every rank throws it after all have exchanged their results, so
/// that they can continue without. Other GroupErrors mean that a rank is lost: nobody may continue.
class StepError final : public GroupError {
 public:
  using GroupError::GroupError;
};

/// Runs `step` on every rank and returns what it returned on all of them, by rank. If it throws on
/// any, every rank throws the same StepError: "rank 2 <goal>: <what it threw>".
std::vector<std::string> in_step(const Meeting& meeting, const std::string& goal,
                                 const std::function<std::string()>& step);

}  // namespace ronde::shm

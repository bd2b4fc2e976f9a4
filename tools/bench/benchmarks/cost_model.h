// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "ronde/algorithms.h"
#include "tools/bench/session/session.h"

namespace ronde::tool {

/// What the cost model of the algorithms between hosts makes of the rows of a report (--model).
class CostModel {
 public:
  CostModel(Session& session, Collective collective) : session_(session), collective_(collective) {}

  /// Runs the operation once more, to see which calls of which algorithm it is made of: those of
  /// the next row. Collective.
  void watch(const std::function<void()>& operation);

  /// Fits the model to the rows, adds its times to them, and prints them beside what was measured.
  void add_to(Report& report) const;

 private:
  /// A row.
  struct Watched {
    CostTerms terms;         ///< of all calls
    std::string algorithms;  ///< empty: none was used
  };

  Session& session_;
  const Collective collective_;
  std::vector<Watched> rows_;
};

}  // namespace ronde::tool

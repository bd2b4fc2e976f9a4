// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ronde/collective.h"
#include "ronde/dtype.h"

namespace ronde::tool {

/// What the program of a rank does in a training step, alike in all steps but for how fast it
/// computes.
struct Program {
  struct Operation {
    std::string name;  ///< empty: matched by the order of calls
    Collective kind = Collective::Allreduce;
    std::uint64_t bytes = 0;
  };
  enum class Act { Submit, Wait, WaitForAll };
  struct Action {
    double after_us = 0;  ///< computed since the action before, or the begin of the step
    Act act = Act::Submit;
    std::size_t operation = 0;  ///< index of Submit and Wait
  };

  std::vector<Operation> operations;
  std::vector<Action> actions;        ///< the last one is WaitForAll
  double rest_us = 0;                 ///< computed from then to the end of the step
  std::uint64_t samples = 0;          ///< 0: not known
  std::vector<double> factors = {1};  ///< of each step of the trace: its computing over this one's
  std::optional<DataType> wire_dtype = {};  ///< in which the trace's allreduces were sent
  std::string remark = {};                  ///< on what the trace has and this lacks

  /// Returns the time of a step in which nothing is waited for.
  double compute_us() const;
};

/// Reads the median step, by computing time, of a rank's file of a timeline, or of that of the
/// lowest rank in a folder. Throws UsageError for a file that is damaged, or has no such step.
///
/// Note [A step from a trace]
/// Computing is what a step takes but for the waits of the program's threads. An operation is
/// submitted after as much computing as in the trace. A wait that is followed by submissions is
/// one for its operation alone; the first one after the last submission is one for all, as that of
/// an optimizer. Where nothing had to be waited for, that is when the last operation is submitted.
Program read_program(const std::string& path);

/// Makes one that submits the gradients of a model (tools/bench/base/gradient_lists.h) last to
/// first, evenly over backward, which takes two thirds of the computing.
Program model_program(const std::string& model, double compute_ms);

}  // namespace ronde::tool

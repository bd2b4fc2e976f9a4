// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ronde/simulation.h"
#include "tools/sim/program.h"

namespace ronde::tool {

/// A rank that is killed, in the middle of its computing of a step.
struct Kill {
  int rank = 0;
  int step = 0;  ///< from 0
};

/// Steps of a program on a group of ranks.
struct Scenario {
  SimulationOptions group;  ///< without its callbacks
  std::optional<DataType> wire_dtype;
  int steps = 20;
  std::uint64_t seed = 0;      ///< of the choice among Program::factors, by rank and step
  std::map<int, double> slow;  ///< factors of what ranks compute
  std::optional<Kill> kill;
  bool keeps_messages = false;  ///< Outcome::messages
};

/// The program of a rank is there.
struct Mark {
  Simulation::Time at{0};
  bool has_waited = false;  ///< for operations, until then
};

/// A step is measured from the end of the one before on the last rank to its own end there. The
/// figures of a step are means, but for step_ms; the first quarter of the steps does not count, in
/// which ranks learn what they repeat. Not numbers where no step was measured.
struct Outcome {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  double step_ms = kNone;        ///< median
  double exposed_ms = kNone;     ///< share of it in which a rank waits; mean of ranks and steps
  double link_messages = kNone;  ///< that a host sends, or receives: the one of most bytes
  double link_bytes = kNone;
  double engine_us = kNone;  ///< of rank 0's processor, in its engine

  /// After a kill: when the programs of the others got an error, in milliseconds since, and how
  /// the first of them words it.
  /// @{
  double first_told_ms = kNone, last_told_ms = kNone;
  std::string told;
  /// @}

  // The last step, kept where Scenario::keeps_messages.
  std::vector<SimulatedMessage> messages;  ///< that were sent since its begin
  std::vector<std::vector<Mark>> marks;    ///< by rank: the begin, each action, and the end
};

/// Simulates it. Throws what Simulation does, and Error if the group fails without a kill.
Outcome simulate(const Scenario& scenario, const Program& program);

/// Writes the last step in the text format GOAL of LogGOPSim (T. Hoefler, C. Siebert, A. Lumsdaine,
/// "Group Operation Assembly Language", 2009). The program of a rank computes between its marks. A
/// rank sends after all that it had received and sent before and after the last mark, and a wait
/// ends after these; what was longer is computing: of the engine, or of what is no message.
void write_goal(const Outcome& outcome, const NetworkCosts& costs, std::ostream& out);

}  // namespace ronde::tool

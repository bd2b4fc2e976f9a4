// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// One rank's side of an agreement: its lines, or why it cannot proceed.
struct Statement {
  std::vector<std::string> lines;
  std::string problem = {};
  /// This rank has nothing to compare: it has joined, for instance.
  bool abstains = false;
};

/// "ronde::allreduce(x)": what the texts, and the operations' names, of a call with a name begin
/// with, alike on all ranks. `name` may be empty.
std::string subject_of(const std::string& function, const std::string& name);

/// "optimizer3": numbered among the objects of this `kind` and the same ranks, all of which
/// construct them in the same order. A rank outside a set knows nothing of the set's.
std::string numbered_name(const std::string& kind, ProcessSet set);

/// What tells apart the names of ranks that made sets of the same ranks: the number of their world,
/// in this process, and the ranks.
using RanksOfWorld = std::pair<std::uint32_t, std::vector<int>>;
/// The world and the ranks of a set.
RanksOfWorld ranks_of_world(ProcessSet set);

struct AgreementOptions {
  /// Ends the text of the error where the lines differ.
  std::string advice = "Build the same model and optimizer on every rank";
  /// How long the other ranks may take to come, zero for ever.
  std::chrono::nanoseconds timeout{0};
  /// Whether a rank that has joined is an error on the others; agree() needs all ranks.
  bool needs_all = false;
  /// Begins the names of the operations, alike on all ranks. Empty: the subject.
  std::string name = {};
};

/// Throws UsageError, beginning with `subject` and ending with `advice`, on a rank outside `set`.
void check_member(const std::string& subject, ProcessSet set, const std::string& advice = {});

/// Returns if all ranks bring the same lines and none has a problem. Otherwise every rank throws
/// the same UsageError, beginning with `subject`, that gives each rank's problem or its first
/// difference from the first rank, or that a rank has joined (ronde::join()). Collective.
void agree(const std::string& subject, const Statement& mine, ProcessSet set = kGlobalSet,
           const AgreementOptions& options = {});

/// Does the same in the background. Ranks that have joined (ronde::join()) count as abstaining.
/// Collective; a rank sends 24 bytes while the ranks agree, else also 16 bytes a line and 4 KiB for
/// each rank.
class Comparison {
 public:
  /// Submits what this rank brings. `options.timeout` is that of each operation.
  Comparison(std::string subject, const Statement& mine, ProcessSet set, AgreementOptions options);

  /// Waits. Returns the text of the error that agree() throws, on all ranks alike; empty if they
  /// agree. To be called once.
  std::string difference() const;

 private:
  std::size_t first_unequal_line(std::size_t count) const;

  const std::string& name() const { return options_.name.empty() ? subject_ : options_.name; }

  std::string subject_;
  Statement mine_;
  ProcessSet set_;
  AgreementOptions options_;
  TensorWork work_;
};

/// The text of agree()'s error from what all ranks brought; empty if they agree. `ranks`: who they
/// are, 0, 1 and so on if it is empty. Pure.
std::string disagreement(const std::string& subject, const std::vector<Statement>& all,
                         const std::vector<int>& ranks = {},
                         const std::string& advice = AgreementOptions().advice);

}  // namespace ronde::detail

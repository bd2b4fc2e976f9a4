// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/torch/work.h"

namespace ronde {
class Runtime;
}

namespace ronde::detail {

/// One rank's part of an agreement: its lines, or why it cannot proceed.
struct Statement {
  std::vector<std::string> lines;
  std::string problem = {};
  /// This rank has nothing to compare, having joined, for instance.
  bool abstains = false;
};

/// "ronde::allreduce(x)", with which texts and names of operations of a call begin, alike on all
/// ranks. `name` may be empty.
std::string subject_of(const std::string& function, const std::string& name);

/// "optimizer3", numbered among the objects of this `kind` and ranks. All of these ranks construct
/// them in the same order; ranks outside the set do not count.
std::string numbered_name(const std::string& kind, ProcessSet set);

/// A set's world in this process (its number, and for that of init() which start it is), and its
/// ranks. Several sets may be equal in both.
using RanksOfWorld = std::pair<std::pair<std::uint32_t, std::uint32_t>, std::vector<int>>;
/// A hook of init().
void count_start(Runtime& runtime);
RanksOfWorld ranks_of_world(ProcessSet set);

struct AgreementOptions {
  /// Ends the text of the error where the lines differ.
  std::string advice = "Build the same model and optimizer on every rank";
  /// Limit for the other ranks to take part; zero means none.
  std::chrono::nanoseconds timeout{0};
  /// Whether a rank that has joined is an error on the others; agree() needs all ranks.
  bool needs_all = false;
  /// Prefix of the names of operations, alike on all ranks; the subject if empty.
  std::string name = {};
};

/// Throws UsageError, beginning with `subject` and ending with `advice`, on a rank outside `set`.
void check_member(const std::string& subject, ProcessSet set, const std::string& advice = {});

/// Returns if all ranks bring the same lines and none has a problem. Otherwise every rank throws
/// the same UsageError, beginning with `subject`, that gives each rank's problem or its first
/// difference from the first rank, or that a rank has joined (ronde::join()). Collective.
void agree(const std::string& subject, const Statement& mine, ProcessSet set = kGlobalSet,
           const AgreementOptions& options = {});

/// An agreement in the background. Ranks that have joined (ronde::join()) abstain. Collective; a
/// rank sends 24 bytes while the ranks agree, else also 16 bytes a line and 4 KiB for each rank.
class Comparison {
 public:
  /// Submits this rank's part. `options.timeout` applies to each operation.
  Comparison(std::string subject, const Statement& mine, ProcessSet set, AgreementOptions options);

  /// Waits, and returns the text of the error that agree() throws, alike on all ranks; empty if
  /// they agree. Call it once.
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

/// Returns the text of agree()'s error from all ranks' statements; empty if they agree. `ranks`:
/// their numbers; 0, 1 and so on if empty. Pure.
std::string disagreement(const std::string& subject, const std::vector<Statement>& all,
                         const std::vector<int>& ranks = {},
                         const std::string& advice = AgreementOptions().advice);

}  // namespace ronde::detail

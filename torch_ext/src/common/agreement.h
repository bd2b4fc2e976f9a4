// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ronde/process_set.h"
#include "ronde/work.h"

namespace ronde::detail {

/// What one rank brings to an agreement: what it has, one entry a line, or why it cannot go on.
struct Statement {
  std::vector<std::string> lines;
  std::string problem = {};
  /// This rank has nothing to say, and takes the lines of the others for its own.
  bool abstains = false;
};

/// "ronde::allreduce(x)": what the texts, and the operations' names, of a call with a name begin
/// with, alike on all ranks. `name` may be empty.
std::string subject_of(const std::string& function, const std::string& name);

struct AgreementOptions {
  /// What to do where the lines differ.
  std::string advice = "Build the same model and optimiser on every rank";
  /// How long the other ranks may take to come, zero for ever.
  std::chrono::nanoseconds timeout{0};
};

/// Who spoke, as ranks within the set.
struct Agreement {
  /// The first that did not abstain, or -1.
  int speaker = -1;
  bool any_abstained = false;
};

/// Throws UsageError, beginning with `subject` and ending with `advice`, on a rank outside `set`.
void check_member(const std::string& subject, ProcessSet set, const std::string& advice = {});

/// Returns if all ranks that do not abstain bring the same lines and none has a problem. Otherwise
/// every rank throws the same UsageError, beginning with `subject`, that gives each rank's problem
/// or its first difference from the first rank. Collective; small while the ranks agree (16 bytes a
/// rank).
Agreement agree(const std::string& subject, const Statement& mine, ProcessSet set = kGlobalSet,
                const AgreementOptions& options = {});

/// Compares statements in the background, among the ranks that have not joined (ronde::join()): the
/// others count as abstaining. Collective; 24 bytes while the ranks agree.
class Comparison {
 public:
  /// Submits what this rank brings. `options.timeout` is that of each operation.
  Comparison(std::string subject, const Statement& mine, ProcessSet set, AgreementOptions options);

  /// Waits. The text of the error that agree() would throw, on all ranks alike; empty if they
  /// agree. Then 16 bytes a line travel, and 4 KiB a rank. To be called once.
  std::string difference() const;

 private:
  std::size_t first_unequal_line(std::size_t count) const;

  std::string subject_;
  Statement mine_;
  ProcessSet set_;
  AgreementOptions options_;
  std::shared_ptr<std::vector<std::int64_t>> brief_;
  Work work_;
};

/// The text of agree()'s error from what all ranks brought; empty if they agree. `ranks`: who they
/// are, 0, 1 and so on if it is empty. Pure.
std::string disagreement(const std::string& subject, const std::vector<Statement>& all,
                         const std::vector<int>& ranks = {},
                         const std::string& advice = AgreementOptions().advice);

}  // namespace ronde::detail

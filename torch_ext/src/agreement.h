// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "ronde/process_set.h"

namespace ronde::detail {

/// What one rank brings to an agreement: what it has, one entry a line, or why it cannot go on.
struct Statement {
  std::vector<std::string> lines;
  std::string problem = {};
};

/// Throws UsageError, beginning with `subject` and ending with `advice`, on a rank outside `set`.
void check_member(const std::string& subject, ProcessSet set, const std::string& advice = {});

/// Returns if all ranks bring the same lines and none has a problem. Otherwise every rank throws
/// the same UsageError, beginning with `subject`, that gives each rank's problem or its first
/// difference from the first rank. Collective; small while the ranks agree (16 bytes a rank).
void agree(const std::string& subject, const Statement& mine, ProcessSet set = kGlobalSet);

/// The text of that error from what all ranks brought; empty if they agree. `ranks`: who they are,
/// 0, 1 and so on if it is empty. Pure.
std::string disagreement(const std::string& subject, const std::vector<Statement>& all,
                         const std::vector<int>& ranks = {});

}  // namespace ronde::detail

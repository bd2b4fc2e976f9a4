// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "forms.h"
#include "ronde/runtime.h"

namespace ronde::test {

/// The process sets of the table's rows.
enum class Members { All, Backward, Some };

/// In the order of the set, of a group of `size`.
std::vector<int> ranks_of(Members members, int size);

/// The global set, or one that all ranks of the runtime add here.
ProcessSet make_set(Runtime& runtime, Members members);

struct Row {
  Case what;
  std::string backend;
  int size = 1;
  Members members = Members::All;
  bool in_place = false;  ///< of a message: from any rank
};

/// Unique in the table.
std::string name_of(const Row& row);

/// Every collective x element type x op x number of ranks (1 to 4) x process set x in place or not.
std::vector<Row> rows_on(const std::string& backend);

/// Runs the row on this rank of its group, in the set that make_set() made for it. What is wrong
/// with the result here; empty: nothing.
std::string outcome_of(const Row& row, Runtime& runtime, ProcessSet set);

}  // namespace ronde::test

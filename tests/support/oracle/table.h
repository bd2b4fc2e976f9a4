// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "ronde/runtime.h"
#include "tests/support/oracle/forms.h"

namespace ronde::test {

/// All rows of a group over one backend: every collective x element type x op x process set x in
/// place or not; or the one row that RONDE_TEST_ROW names.
class Table {
 public:
  Table(std::string backend, int size);

  /// By row.
  using Outcomes = std::vector<std::string>;

  /// Runs the rows on this rank of the group: what is wrong with its result; empty: nothing. A row
  /// that ends the group is the last one that runs. `arms_watchdog`: the test's deadline begins
  /// anew with each row, whose name the watchdog prints; not for two threads of one process.
  Outcomes run(Runtime& runtime, bool arms_watchdog) const;

  /// Fails with the name of each row that is wrong on any rank, what is wrong there, and how to run
  /// that row alone: `launcher` starts the ranks. `outcomes`: by rank.
  void check(const std::vector<Outcomes>& outcomes, const std::string& launcher = "") const;

 private:
  std::string name_of(const Row& row) const;
  std::vector<Row> all_rows() const;

  const std::string backend_;
  const int size_;
  std::vector<Row> rows_;
};

}  // namespace ronde::test

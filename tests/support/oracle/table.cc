// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle/table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <numeric>
#include <stdexcept>

#include "ronde/error.h"
#include "tests/support/harness/watchdog.h"
#include "tests/support/oracle/oracle.h"

namespace ronde::test {
namespace {

std::string text_of(Members members) {
  return members == Members::All        ? "all ranks"
         : members == Members::Backward ? "all backward"
                                        : "some";
}

/// In the order of the set.
std::vector<int> ranks_of(Members members, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (members == Members::Backward) std::reverse(ranks.begin(), ranks.end());
  if (members == Members::Some) std::erase(ranks, size - 2);
  return ranks;
}

/// Those that a group of `size` can have: all ranks of it call this.
std::map<Members, ProcessSet> make_sets(Runtime& runtime, int size) {
  std::map<Members, ProcessSet> sets = {{Members::All, kGlobalSet}};
  if (size >= 2) {
    sets[Members::Backward] = runtime.add_process_set(ranks_of(Members::Backward, size));
  }
  if (size >= 3) sets[Members::Some] = runtime.add_process_set(ranks_of(Members::Some, size));
  return sets;
}

/// Every collective with every type, and where it reduces with every op that the type has.
std::vector<Row> collectives() {
  std::vector<Row> rows;
  for (const DataType dtype : kAllDataTypes) {
    for (const Collective kind : {Collective::Allreduce, Collective::Reducescatter}) {
      for (const ReduceOp op : kElementwiseOps) {
        const bool is_refused = dtype == DataType::Bool && op == ReduceOp::Average;
        if (!is_refused) rows.push_back({kind, dtype, op});
        if (!is_integer(dtype) || !can_have_factors(dtype, op)) continue;
        rows.push_back({.kind = kind, .dtype = dtype, .op = op, .prescale = 0.3, .postscale = -2});
      }
    }
    for (const Collective kind :
         {Collective::Broadcast, Collective::Allgather, Collective::Alltoall, Collective::Send}) {
      rows.push_back({kind, dtype});
    }
  }
  return rows;
}

std::string this_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace

Table::Table(std::string backend, int size)
    : backend_(std::move(backend)), size_(size), rows_(all_rows()) {
  const char* const only = std::getenv("RONDE_TEST_ROW");
  if (only == nullptr) return;
  std::erase_if(rows_, [&](const Row& row) { return name_of(row) != only; });
  if (rows_.empty()) throw std::runtime_error(std::string("there is no row '") + only + "' here");
}

std::vector<Row> Table::all_rows() const {
  std::vector<Row> rows;
  for (Row row : collectives()) {
    if (row.kind == Collective::Send && size_ == 1) continue;  // no rank sends to itself
    for (const Members members : {Members::All, Members::Backward, Members::Some}) {
      if ((members == Members::Backward && size_ < 2) || (members == Members::Some && size_ < 3)) {
        continue;
      }
      row.members = members;
      for (const bool in_place : {false, true}) {
        row.in_place = in_place;
        rows.push_back(row);
      }
    }
  }
  return rows;
}

std::string Table::name_of(const Row& row) const {
  const bool is_sent = row.kind == Collective::Send;
  const bool reduces = row.kind == Collective::Allreduce || row.kind == Collective::Reducescatter;
  std::string name(is_sent ? "send and recv" : to_string(row.kind));
  name += " " + std::string(to_string(row.dtype));
  if (reduces) name += " " + std::string(to_string(row.op));
  name += " on " + backend_ + " of " + std::to_string(size_) + ", " + text_of(row.members);
  if (row.prescale != 1.0) name += ", scaled";
  if (row.in_place) name += is_sent ? ", from any rank" : ", in place";
  return name;
}

Table::Outcomes Table::run(Runtime& runtime, bool arms_watchdog) const {
  const std::map<Members, ProcessSet> sets = make_sets(runtime, size_);
  Outcomes outcomes(rows_.size());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (arms_watchdog) {
      ronde_test::watchdog().disarm();
      ronde_test::watchdog().arm(name_of(row), ronde_test::watchdog_deadline());
    }
    const ProcessSet set = sets.at(row.members);
    const auto rank = runtime.rank_in(set);
    if (!rank) continue;
    try {
      outcomes[i] = run_row(row, runtime, {set, ranks_of(row.members, size_), *rank});
    } catch (const UsageError& error) {
      outcomes[i] = error.what();  // the group goes on
    } catch (const std::exception& error) {
      outcomes[i] = std::string(error.what()) + "; rows after it were not run";
      break;
    }
  }
  return outcomes;
}

void Table::check(const std::vector<Outcomes>& outcomes, const std::string& launcher) const {
  const std::string test_case = Catch::getResultCapture().getCurrentTestName();
  std::size_t right = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    std::string wrong;
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const std::string& text = outcomes[rank].at(i);
      if (!text.empty()) wrong += "\n  rank " + std::to_string(rank) + ": " + text;
    }
    if (wrong.empty()) ++right;
    if (wrong.empty()) continue;
    const std::string name = name_of(rows_[i]);
    // Not by way of Catch2, which breaks long lines.
    std::cout << "alone: RONDE_TEST_ROW='" << name << "' " << launcher << this_program() << " '"
              << test_case << "'" << std::endl;
    FAIL_CHECK(name << wrong);
  }
  CHECK(right == rows_.size());
}

}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <algorithm>
#include <numeric>

#include "expected.h"

namespace ronde::test {
namespace {

std::string text_of(Members members) {
  return members == Members::All        ? "all ranks"
         : members == Members::Backward ? "all backward"
                                        : "some";
}

/// Every collective with every type, and where it reduces with every op that the type has.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const DataType dtype : kAllDataTypes) {
    for (const Collective kind : {Collective::Allreduce, Collective::Reducescatter}) {
      for (const ReduceOp op : kElementwiseOps) {
        const bool is_refused = dtype == DataType::Bool && op == ReduceOp::Average;
        if (!is_refused) cases.push_back({kind, dtype, op});
      }
    }
    for (const Collective kind :
         {Collective::Broadcast, Collective::Allgather, Collective::Alltoall, Collective::Send}) {
      cases.push_back({kind, dtype, ReduceOp::Sum});
    }
  }
  return cases;
}

}  // namespace

std::vector<int> ranks_of(Members members, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (members == Members::Backward) std::reverse(ranks.begin(), ranks.end());
  if (members == Members::Some) std::erase(ranks, size - 2);
  return ranks;
}

ProcessSet make_set(Runtime& runtime, Members members) {
  if (members == Members::All) return kGlobalSet;
  return runtime.add_process_set(ranks_of(members, runtime.topology().size));
}

std::string name_of(const Row& row) {
  const bool reduces =
      row.what.kind == Collective::Allreduce || row.what.kind == Collective::Reducescatter;
  const bool is_sent = row.what.kind == Collective::Send;
  std::string name(is_sent ? "send and recv" : to_string(row.what.kind));
  name += " " + std::string(to_string(row.what.dtype));
  if (reduces) name += " " + std::string(to_string(row.what.op));
  name += " on " + row.backend + " of " + std::to_string(row.size) + ", " + text_of(row.members);
  if (row.in_place) name += is_sent ? ", from any rank" : ", in place";
  return name;
}

std::vector<Row> rows_on(const std::string& backend) {
  std::vector<Row> rows;
  for (const Case& what : all_cases()) {
    // No rank sends to itself.
    const int least = what.kind == Collective::Send ? 2 : 1;
    for (int size = least; size <= 4; ++size) {
      for (const Members members : {Members::All, Members::Backward, Members::Some}) {
        if ((members == Members::Backward && size < 2) || (members == Members::Some && size < 3)) {
          continue;
        }
        for (const bool in_place : {false, true}) {
          rows.push_back({what, backend, size, members, in_place});
        }
      }
    }
  }
  return rows;
}

std::string outcome_of(const Row& row, Runtime& runtime, ProcessSet set) {
  const auto within = runtime.rank_in(set);
  if (!within) return {};
  const Place place = {set, ranks_of(row.members, row.size), *within};
  const std::vector<Elements> inputs = inputs_of(row.what, place);
  const Elements result = run_case(runtime, row.what, place, inputs, row.in_place);
  return difference(row.what, place, inputs, result);
}

}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
// The table itself.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "backends/shm/shm.h"
#include "expected.h"
#include "forms.h"
#include "tests/support/case_table.h"
#include "tests/support/ranks.h"

namespace ronde::test {
namespace {

/// The process sets of a table's rows.
enum class Members { All, Backward, Some };

std::string to_string(Members members) {
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

struct Row {
  Case what;
  std::string backend;
  int size = 1;
  Members members = Members::All;
  bool in_place = false;
};

void run_row(const Row& row) {
  const inproc::Group group(row.size);
  const std::vector<int> ranks = ranks_of(row.members, row.size);
  run_ranks(row.size, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    options.config.cpu_backend = row.backend;
    options.backends["shm"] = shm_backend_factory({.slot_bytes = 4096});
    Runtime runtime(std::move(options));
    const ProcessSet set =
        row.members == Members::All ? kGlobalSet : runtime.add_process_set(ranks);
    if (const auto within = runtime.rank_in(set)) {
      const Place place = {set, ranks, *within};
      const std::vector<Elements> inputs = inputs_of(row.what, place);
      const Elements result = run_case(runtime, row.what, place, inputs, row.in_place);
      const std::string what = difference(row.what, place, inputs, result);
      check(what.empty(), "rank " + std::to_string(place.rank) + ": " + what);
    }
    runtime.shutdown();
  });
}

std::string name_of(const Row& row) {
  const bool reduces =
      row.what.kind == Collective::Allreduce || row.what.kind == Collective::Reducescatter;
  const bool is_sent = row.what.kind == Collective::Send;
  std::string name(is_sent ? "send and recv" : to_string(row.what.kind));
  name += " " + std::string(to_string(row.what.dtype));
  if (reduces) name += " " + std::string(to_string(row.what.op));
  name += " on " + row.backend + " of " + std::to_string(row.size) + ", " + to_string(row.members);
  if (row.in_place) name += is_sent ? ", from any rank" : ", in place";
  return name;
}

void add_forms(const Case& what) {
  for (const char* const backend : {"inproc", "shm"}) {
    for (int size = 1; size <= 4; ++size) {
      for (const Members members : {Members::All, Members::Backward, Members::Some}) {
        if ((members == Members::Backward && size < 2) || (members == Members::Some && size < 3)) {
          continue;
        }
        for (const bool in_place : {false, true}) {
          const Row row = {what, backend, size, members, in_place};
          add_case(name_of(row), "", [row] { run_row(row); });
        }
      }
    }
  }
}

const bool registered = [] {
  for (const DataType dtype : kAllDataTypes) {
    for (const Collective kind : {Collective::Allreduce, Collective::Reducescatter}) {
      for (const ReduceOp op : kAllReduceOps) {
        const bool is_refused = dtype == DataType::Bool && op == ReduceOp::Average;
        if (!is_refused) add_forms({kind, dtype, op});
      }
    }
    for (const Collective kind :
         {Collective::Broadcast, Collective::Allgather, Collective::Alltoall, Collective::Send}) {
      add_forms({kind, dtype, ReduceOp::Sum});
    }
  }
  return true;
}();

}  // namespace

TEST_CASE("the table has been filled") {
  CHECK(registered);
}

}  // namespace ronde::test

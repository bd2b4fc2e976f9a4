// SPDX-License-Identifier: Apache-2.0
// Allreduce of every type and op through rings of all kinds, against numbers reduced in double
// precision or 64-bit integers; and the same bits on every rank.
#include <string>
#include <vector>

#include "calls.h"
#include "case_table.h"
#include "group.h"
#include "tests/support/sanitizers.h"

namespace ronde::test {
namespace {

RunRanks ranks_of(int ranks, const ShmOptions& options) {
  return [ranks, options](const std::function<void(int rank, const RunAllreduce&)>& body) {
    run_backends(ranks, options, [&](int rank, shm::ShmBackend& backend) {
      body(rank, [&](const AllreduceCall& call) { finish(*backend.allreduce(call)); });
    });
  };
}

struct Variant {
  const char* name;
  ShmOptions options;
};

using Reduce = ShmOptions::Reduce;
using Stores = ShmOptions::Stores;
constexpr Variant kVariants[] = {
    {"the usual ring", {}},
    {"a tiny ring", {.slots = 2, .slot_bytes = 128, .reduce = Reduce::Flat}},
    {"a tiny ring by slices", {.slots = 2, .slot_bytes = 128, .reduce = Reduce::Sliced}},
    {"one slot",
     {.slots = 1, .slot_bytes = 192, .reduce = Reduce::Flat, .stores = Stores::Streaming}},
    {"one slot by slices", {.slots = 1, .slot_bytes = 192, .reduce = Reduce::Sliced}},
};

[[maybe_unused]] const bool kRegistered = [] {
  for (const Variant& variant : kVariants) {
    const auto on_some_ranks = [&variant](void (*check)(int ranks, const RunRanks& run_ranks)) {
      for (int ranks = plain_or_sanitized(1, 3); ranks <= 3; ++ranks) {
        check(ranks, ranks_of(ranks, variant.options));
      }
    };
    const std::string ring = variant.name;
    add_case("every op of every type through " + ring, "",
             [on_some_ranks] { on_some_ranks(check_every_op); });
    add_case("elements travel as halves through " + ring, "", [on_some_ranks] {
      on_some_ranks([](int ranks, const RunRanks& run) { check_wire_dtypes(ranks, 1, run); });
    });
  }
  return true;
}();

TEST_CASE("ranks may add nothing to some of the segments") {
  for (const Variant& variant : kVariants) {
    CAPTURE(variant.name);
    check_absent(3, ranks_of(3, variant.options));
  }
}

TEST_CASE("operations larger than the ring") {
  const int ranks = GENERATE(2, 3, 4, 8);
  const Reduce reduce = GENERATE(Reduce::Auto, Reduce::Flat, Reduce::Sliced);
  const Stores stores = GENERATE(Stores::Auto, Stores::Streaming);
  CAPTURE(ranks, static_cast<int>(reduce), static_cast<int>(stores));
  const std::vector<std::size_t> tiny(600, 2);
  std::vector<Call> calls;
  for (const bool in_place : {false, true}) {
    for (const auto& counts : std::vector<std::vector<std::size_t>>{
             {12'000}, {1024}, {4097, 1, 8192}, tiny, {1, 3000, 3, 7, 5501}}) {
      calls.push_back({{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, counts, in_place});
      calls.push_back(
          {{DataType::F32, ReduceOp::Average, 0.7, 1.0, ranks, DataType::BF16}, counts, in_place});
    }
  }
  check_calls(
      calls,
      ranks_of(ranks, {.slots = 3, .slot_bytes = 4 << 10, .reduce = reduce, .stores = stores}));
}

TEST_CASE("as many ranks as a host may have reduce") {
  const int ranks = GENERATE(33, 64);
  const Reduce reduce = GENERATE(Reduce::Auto, Reduce::Flat);
  CAPTURE(ranks);
  check_calls({{{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, {4000, 1, 30}, true},
               {{DataType::I32, ReduceOp::Max, 1.0, 1.0, ranks}, {33}, false}},
              ranks_of(ranks, {.slots = 2, .slot_bytes = 4 << 10, .reduce = reduce}));
}

TEST_CASE("results are the same bits whatever the ring, and from run to run") {
  for (const DataType dtype : {DataType::F32, DataType::BF16}) {
    const std::vector<Call> calls = {
        {{dtype, ReduceOp::Sum, 0.3, 1.7, 5}, {1000, 1, 0, 333}, false},
        {{dtype, ReduceOp::Average, 1.0, 1.0, 5}, {4097}, true},
        {{DataType::F64, ReduceOp::Sum, 0.3, 1.7, 5,
          dtype == DataType::F32 ? DataType::F16 : dtype},
         {4097, 3},
         false}};
    const auto first = results_of(calls, ranks_of(5, {}));
    for (const Variant& variant : kVariants) {
      CAPTURE(variant.name);
      CHECK(results_of(calls, ranks_of(5, variant.options)) == first);
    }
  }
}

}  // namespace
}  // namespace ronde::test

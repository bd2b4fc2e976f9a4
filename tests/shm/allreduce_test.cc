// SPDX-License-Identifier: Apache-2.0
// Allreduce of every type and op through rings of all kinds, against numbers reduced in double
// precision or 64-bit integers; and the same bits on every rank.
#include <algorithm>
#include <string>
#include <vector>

#include "calls.h"
#include "case_table.h"
#include "group.h"

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
  std::string name;
  ShmOptions options;
};

ShmOptions with(ShmOptions options, ShmOptions::Reduce reduce,
                ShmOptions::Stores stores = ShmOptions::Stores::Auto) {
  options.reduce = reduce;
  options.stores = stores;
  return options;
}

const std::vector<Variant>& variants() {
  using Reduce = ShmOptions::Reduce;
  using Stores = ShmOptions::Stores;
  static const std::vector<Variant> all = {
      {"the usual ring", {}},
      {"a tiny ring", with(tiny_ring(), Reduce::Flat)},
      {"a tiny ring by slices", with(tiny_ring(), Reduce::Sliced)},
      {"one slot", with({.slots = 1, .slot_bytes = 192}, Reduce::Flat, Stores::Streaming)},
      {"one slot by slices", with({.slots = 1, .slot_bytes = 192}, Reduce::Sliced)},
  };
  return all;
}

[[maybe_unused]] const bool kTypesRegistered = [] {
  for (const DataType dtype : kAllDataTypes) {
    add_case("every op of " + std::string(to_string(dtype)) + " through every kind of ring", "",
             [dtype] {
               for (const Variant& variant : variants()) {
                 for (const ReduceOp op : kElementwiseOps) {
                   if (dtype == DataType::Bool && op == ReduceOp::Average) continue;
                   for (const int ranks : {1, 2, 3}) {
                     CAPTURE(variant.name, to_string(op), ranks);
                     check_lists({dtype, op, 1.0, 1.0, ranks}, ranks_of(ranks, variant.options));
                   }
                 }
               }
             });
  }
  return true;
}();

[[maybe_unused]] const bool kWireTypesRegistered = [] {
  for (const int ranks : {1, 2, 3}) {
    add_case("elements of " + std::to_string(ranks) + " ranks travel as halves, by every ring", "",
             [ranks] {
               for (const Variant& variant : variants()) {
                 CAPTURE(variant.name);
                 check_wire_dtypes(ranks, 1, ranks_of(ranks, variant.options));
               }
             });
  }
  return true;
}();

std::vector<Call> large_calls(int ranks) {
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
  return calls;
}

[[maybe_unused]] const bool kSizesRegistered = [] {
  using Reduce = ShmOptions::Reduce;
  using Stores = ShmOptions::Stores;
  for (const int ranks : {2, 3, 4, 8}) {
    add_case("operations larger than the ring of " + std::to_string(ranks) + " ranks", "", [ranks] {
      for (const Reduce reduce : {Reduce::Auto, Reduce::Flat, Reduce::Sliced}) {
        for (const Stores stores : {Stores::Auto, Stores::Streaming}) {
          CAPTURE(static_cast<int>(reduce), static_cast<int>(stores));
          const ShmOptions options = with({.slots = 3, .slot_bytes = 4 << 10}, reduce, stores);
          check_calls(large_calls(ranks), ranks_of(ranks, options));
        }
      }
    });
  }
  return true;
}();

TEST_CASE("as many ranks as a host may have reduce") {
  for (const int ranks : {33, 64}) {
    CAPTURE(ranks);
    for (const ShmOptions::Reduce reduce : {ShmOptions::Reduce::Auto, ShmOptions::Reduce::Flat}) {
      check_calls({{{DataType::F32, ReduceOp::Average, 1.0, 1.0, ranks}, {4000, 1, 30}, true},
                   {{DataType::I32, ReduceOp::Max, 1.0, 1.0, ranks}, {33}, false}},
                  ranks_of(ranks, with({.slots = 2, .slot_bytes = 4 << 10}, reduce,
                                       ShmOptions::Stores::Auto)));
    }
  }
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
    for (const Variant& variant : variants()) {
      CAPTURE(variant.name);
      CHECK(results_of(calls, ranks_of(5, variant.options)) == first);
    }
  }
}

TEST_CASE("ranks may add nothing to some of the segments") {
  for (const Variant& variant : variants()) {
    CAPTURE(variant.name);
    const RunRanks ranks = ranks_of(3, variant.options);
    check_absent({DataType::F32, ReduceOp::Sum, 1.0, 1.0, 3}, ranks);
    check_absent({DataType::F32, ReduceOp::Min, 1.0, 1.0, 3}, ranks);
    check_absent({DataType::I16, ReduceOp::Product, 1.0, 1.0, 3}, ranks);
    check_absent({DataType::F16, ReduceOp::Average, 1.0, 1.0, 3}, ranks);
  }
}

}  // namespace
}  // namespace ronde::test

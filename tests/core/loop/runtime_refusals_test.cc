// SPDX-License-Identifier: Apache-2.0
// Operations on whole runtimes that are refused, while the job goes on.
#include <catch2/catch.hpp>
#include <limits>

#include "core/src/op/op_spec.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// A request as every rank sends it, and its text.
struct Sent {
  Collective kind;
  std::string text;
};

const Sent kAllreduce = {Collective::Allreduce, "allreduce f32 [3, 2] sum on cpu"};
const Sent kBroadcast = {Collective::Broadcast, "broadcast f32 [3, 2] root 0 on cpu"};
const Sent kAllgather = {Collective::Allgather, "allgather f32 [3, 2] on cpu"};
const Sent kReducescatter = {Collective::Reducescatter, "reducescatter f32 [3, 2] sum on cpu"};
const Sent kAlltoall = {Collective::Alltoall, "alltoall f32 [3, 2] on cpu"};

/// Rank 1 of 3 applies `change`: checks that all ranks get a mismatch with `expected` in the text.
void check_mismatch(const Sent& sent, const std::function<void(Request&)>& change,
                    const std::string& expected) {
  for (const bool named : {true, false}) {
    run_group(3, [&](int rank, Runtime& runtime) {
      std::vector<float> values(6, 1.0F);
      // Cached first, then refused, then as before.
      for (int step = 0; step < 3; ++step) {
        std::vector<float> output(18, -1.0F);
        Request request = sum_request(values, named ? "x" : "");
        request.kind = sent.kind;
        request.shape = {3, 2};
        request.output = output.data();
        if (step == 1 && rank == 1) change(request);
        const Work work = runtime.submit(request);
        if (step != 1) {
          work.wait();
          check(output[0] == (is_reduction(sent.kind) ? 3.0F : 1.0F), "the result");
          continue;
        }
        const std::string text = usage_error_of(work);
        check_contains(text, "differs between ranks");
        check_contains(text, "ranks 0,2: " + sent.text);
        check_contains(text, "rank 1: " + expected);
        check(output == std::vector<float>(18, -1.0F), "nothing was done");
      }
      check_goes_on(runtime);
    });
  }
}

struct Mismatch {
  std::string what;
  Sent sent;
  std::function<void(Request&)> change;
  std::string expected;
};

const std::vector<Mismatch> kMismatches = {
    {"shape", kAllreduce, [](Request& r) { r.shape = {6}; }, "allreduce f32 [6] sum on cpu"},
    {"extents", kAllreduce, [](Request& r) { std::swap(r.shape[0], r.shape[1]); },
     "allreduce f32 [2, 3] sum on cpu"},
    {"dtype", kAllreduce, [](Request& r) { r.dtype = DataType::I32; },
     "allreduce i32 [3, 2] sum on cpu"},
    {"shape of a broadcast", kBroadcast, [](Request& r) { r.shape = {6}; },
     "broadcast f32 [6] root 0 on cpu"},
    {"dtype of a broadcast", kBroadcast, [](Request& r) { r.dtype = DataType::I32; },
     "broadcast i32 [3, 2] root 0 on cpu"},
    {"root", kBroadcast, [](Request& r) { r.root = 1; }, "broadcast f32 [3, 2] root 1 on cpu"},
    {"dtype of an allgather", kAllgather, [](Request& r) { r.dtype = DataType::I32; },
     "allgather i32 [3, 2] on cpu"},
    {"columns of an allgather", kAllgather, [](Request& r) { r.shape[1] = 1; },
     "allgather f32 [3, 1] on cpu"},
    {"dtype of a reducescatter", kReducescatter, [](Request& r) { r.dtype = DataType::I32; },
     "reducescatter i32 [3, 2] sum on cpu"},
    {"rows of a reducescatter", kReducescatter, [](Request& r) { r.shape[0] = 2; },
     "reducescatter f32 [2, 2] sum on cpu"},
    {"columns of an alltoall", kAlltoall, [](Request& r) { r.shape[1] = 1; },
     "alltoall f32 [3, 1] on cpu"},
    {"op", kAllreduce, [](Request& r) { r.op = ReduceOp::Max; }, "allreduce f32 [3, 2] max on cpu"},
    {"prescale", kAllreduce, [](Request& r) { r.prescale = 2; },
     "allreduce f32 [3, 2] sum prescale 2 on cpu"},
    {"postscale", kAllreduce, [](Request& r) { r.postscale = 3; },
     "allreduce f32 [3, 2] sum postscale 3 on cpu"},
    {"wire_dtype", kAllreduce, [](Request& r) { r.wire_dtype = DataType::BF16; },
     "allreduce f32 [3, 2] as bf16 sum on cpu"},
    {"device", kAllreduce, [](Request& r) { r.device.kind = DeviceKind::Cuda; },
     "allreduce f32 [3, 2] sum on cuda"},
    {"kind", kAllreduce, [](Request& r) { r.kind = Collective::Broadcast; },
     "broadcast f32 [3, 2] root 0 on cpu"}};

const bool registered = [] {
  for (const Mismatch& row : kMismatches) {
    add_case("ranks that disagree on the " + row.what + " are told what each sent", "",
             [&row] { check_mismatch(row.sent, row.change, row.expected); });
  }
  return true;
}();

struct Refusal {
  std::function<void(Request&)> change;
  std::string text;
  Collective kind = Collective::Allreduce;

  Request request(std::vector<float>& values) const {
    Request request = sum_request(values, "x");
    request.kind = kind;
    change(request);
    return request;
  }
};

/// Checks that a request throws at once where this rank alone can see the error.
void check_refused_at_once(Runtime& runtime, const Refusal& refusal) {
  std::vector<float> values(6, 1.0F);
  check_contains(text_of<UsageError>([&] { runtime.submit(refusal.request(values)); }),
                 refusal.text);
  check_goes_on(runtime);
}

}  // namespace

TEST_CASE("what no rank can have is refused on every rank") {
  const auto no_dimension = [](Request& r) { r.shape.clear(); };
  const Refusal rows[] = {
      {[](Request& r) { r.root = -1; }, "root -1 is out of range: there are ranks 0 to 1",
       Collective::Broadcast},
      {[](Request& r) { r.root = 2; }, "root 2 is out of range: there are ranks 0 to 1",
       Collective::Broadcast},
      {[](Request& r) { r.dtype = DataType::Bool, r.op = ReduceOp::Average; },
       "bools have no average"},
      {[](Request& r) { r.device.kind = DeviceKind::Cuda; }, "no backend for cuda"},
      {no_dimension, "a scalar has no first dimension", Collective::Allgather},
      {no_dimension, "reducescatter 'x': a scalar has no first dimension to split along",
       Collective::Reducescatter},
      // Rank 0, which alone would get a row, does not refuse it by itself: the others would wait.
      {[](Request& r) { r.shape.clear(), r.output = nullptr; },
       "reducescatter 'x': a scalar has no first dimension to split along",
       Collective::Reducescatter},
      {[](Request& r) { r.shape.push_back(-1); }, "negative dimension"},
      {[](Request& r) { r.shape.assign(2, std::int64_t{1} << 40); }, "2^62"}};
  run_group(2, [&](int, Runtime& runtime) {
    for (const Refusal& row : rows) {
      std::vector<float> values(6, 1.0F);
      for (int step = 0; step < 2; ++step) {
        check_contains(usage_error_of(runtime.submit(row.request(values))), row.text);
      }
      check(values == std::vector<float>(6, 1.0F), "nothing was done");
      check_goes_on(runtime);
    }
  });
}

TEST_CASE("what a rank alone can see to be wrong is refused at once") {
  const auto no_input = [](Request& r) { r.input = nullptr; };
  const auto no_output = [](Request& r) { r.output = nullptr; };
  const Refusal rows[] = {
      {[](Request& r) { r.set.id = 3; }, "process set 3 does not exist"},
      {no_input, "allreduce 'x': input is null"},
      {no_output, "output is null"},
      {no_output, "neither output nor allocate_output", Collective::Allgather},
      {[](Request& r) { r.name = std::string(1, '\0'); }, "NUL"},
      {no_input, "alltoall 'x': input is null", Collective::Alltoall},
      {no_output, "reducescatter 'x': neither output nor allocate_output is set",
       Collective::Reducescatter},
      {[](Request& r) { r.splits = {6}; }, "only an alltoall has splits"},
      {[](Request& r) { r.contributes = false; }, "contribution", Collective::Broadcast},
      {[](Request& r) { r.dtype = static_cast<DataType>(kDataTypeCount); }, "none that there is"},
      {[](Request& r) { r.op = static_cast<ReduceOp>(kReduceOpCount); }, "none that there is"},
      {[](Request& r) { r.kind = static_cast<Collective>(kCollectiveCount); },
       "none that there is"},
      {[](Request& r) { r.postscale = std::numeric_limits<double>::quiet_NaN(); },
       "a scale is NaN"},
      {[](Request& r) { r.rank_factor = std::numeric_limits<double>::quiet_NaN(); },
       "rank_factor is NaN"},
      {[](Request& r) { r.rank_factor = 2, r.dtype = DataType::I32; }, "rank_factor is for"},
      {[](Request& r) { r.rank_factor = 2, r.device.kind = DeviceKind::Cuda; }, "on the CPU"},
      {[](Request& r) { r.rank_factor = 2; }, "rank_factor is for", Collective::Broadcast},
      {[](Request& r) { r.op = ReduceOp::BitOr; }, "bit_or of f32: bits are", Collective::Reduce},
      {[](Request& r) { r.op = ReduceOp::BitXor, r.dtype = DataType::C64; }, "bit_xor of c64"},
      {[](Request& r) { r.op = ReduceOp::Max, r.dtype = DataType::C128; }, "max of c128: complex"}};
  run_group(1, [&](int, Runtime& runtime) {
    for (const Refusal& row : rows) check_refused_at_once(runtime, row);
  });
}

TEST_CASE("a wire_dtype that is impossible is refused at once, with what to do") {
  run_group(1, [](int, Runtime& runtime) {
    const auto check_wire = [&](DataType dtype, DataType wire, Collective kind) {
      const auto change = [&](Request& r) { r.dtype = dtype, r.wire_dtype = wire; };
      check_refused_at_once(runtime, {change,
                                      "rank 0: " + std::string(to_string(kind)) +
                                          " 'x': " + std::string(to_string(dtype)) +
                                          " cannot be sent as " + std::string(to_string(wire)) +
                                          ": wire_dtype is for an allreduce or reduce of f32 or "
                                          "f64, and f16 or bf16. Leave it out",
                                      kind});
    };
    for (const DataType dtype : kAllDataTypes) {
      for (const DataType wire : kAllDataTypes) {
        const DataType real = real_type(dtype);
        const bool is_full = real == DataType::F32 || real == DataType::F64;
        if (dtype == wire || (is_full && is_half(wire))) continue;
        check_wire(dtype, wire, Collective::Allreduce);
      }
    }
    for (const Collective kind : {Collective::Broadcast, Collective::Allgather,
                                  Collective::Alltoall, Collective::Reducescatter}) {
      check_wire(DataType::F32, DataType::BF16, kind);
    }
    check_wire(DataType::F32, static_cast<DataType>(77), Collective::Allreduce);
    const auto symmetric = [](Request& r) { r.wire_dtype = DataType::F16, r.symmetric = true; };
    check_refused_at_once(runtime, {symmetric, "a symmetric allreduce cannot have a wire_dtype"});
  });
}

TEST_CASE("factors of integers that would not be exact are refused, and f64 is named") {
  run_group(1, [](int, Runtime& runtime) {
    const auto check_factor = [&](DataType dtype, ReduceOp op, const std::string& text) {
      for (const Collective kind : {Collective::Allreduce, Collective::Reducescatter}) {
        for (const bool before : {true, false}) {
          const auto change = [&](Request& r) {
            r.dtype = dtype;
            r.op = op;
            (before ? r.prescale : r.postscale) = 0.5;
          };
          check_refused_at_once(
              runtime, {change,
                        "rank 0: " + std::string(to_string(kind)) + " 'x': " + text +
                            ": leave prescale and postscale out, or convert the buffer to f64",
                        kind});
        }
      }
    };
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
      check_factor(DataType::I64, op, "factors are f64 numbers, which are not exact for i64");
    }
    check_factor(DataType::U64, ReduceOp::Sum,
                 "factors are f64 numbers, which are not exact for u64");
    for (const DataType dtype : {DataType::U8, DataType::I64}) {
      check_factor(
          dtype, ReduceOp::Product,
          "prescale and postscale are not for the product of " + std::string(to_string(dtype)));
    }
    check_factor(DataType::I32, ReduceOp::Max, "prescale and postscale are not for the max of i32");
  });
}

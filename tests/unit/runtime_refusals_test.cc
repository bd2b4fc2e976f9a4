// SPDX-License-Identifier: Apache-2.0
// Operations on whole runtimes that are refused, while the job goes on.
#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "core/src/request_meta.h"
#include "ronde/error.h"
#include "tests/support/case_table.h"
#include "tests/support/ranks.h"
#include "tests/support/requests.h"
#include "tests/unit/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// A request as every rank sends it, and what the text says of it.
struct Sent {
  Collective kind;
  std::string text;
};

const Sent kAllreduce = {Collective::Allreduce, "allreduce f32 [3, 2] sum on cpu"};
const Sent kBroadcast = {Collective::Broadcast, "broadcast f32 [3, 2] root 0 on cpu"};
const Sent kReducescatter = {Collective::Reducescatter, "reducescatter f32 [3, 2] sum on cpu"};
const Sent kAlltoall = {Collective::Alltoall, "alltoall f32 [3, 2] on cpu"};

/// Ranks disagree after `change` on rank 1 of 3: all are told, and `expected` is in the text.
void check_mismatch(const Sent& sent, const std::function<void(Request&)>& change,
                    const std::string& expected) {
  for (const bool named : {true, false}) {
    run_group(3, [&](int rank, Runtime& runtime) {
      std::vector<float> values(6, 1.0F);
      // Cached first, then refused, then as before.
      for (int step = 0; step < 3; ++step) {
        std::vector<float> output(6, -1.0F);
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
        check(output == std::vector<float>(6, -1.0F), "nothing was done");
      }
      check_goes_on(runtime);
    });
  }
}

const bool registered = [] {
  const auto add = [](const std::string& what, const Sent& sent,
                      std::function<void(Request&)> change, const std::string& expected) {
    add_case("ranks that disagree on the " + what + " are told what each sent", "",
             [=] { check_mismatch(sent, change, expected); });
  };
  const auto as_integers = [](Request& r) { r.dtype = DataType::I32; };
  add(
      "shape", kAllreduce, [](Request& r) { r.shape = {6}; }, "allreduce f32 [6] sum on cpu");
  add("dtype", kAllreduce, as_integers, "allreduce i32 [3, 2] sum on cpu");
  add("dtype of a broadcast", kBroadcast, as_integers, "broadcast i32 [3, 2] root 0 on cpu");
  add("dtype of a reducescatter", kReducescatter, as_integers,
      "reducescatter i32 [3, 2] sum on cpu");
  add(
      "columns of an alltoall", kAlltoall,
      [](Request& r) {
        r.shape = {3, 1};
      },
      "alltoall f32 [3, 1] on cpu");
  add(
      "op", kAllreduce, [](Request& r) { r.op = ReduceOp::Max; },
      "allreduce f32 [3, 2] max on cpu");
  add(
      "prescale", kAllreduce, [](Request& r) { r.prescale = 2; },
      "allreduce f32 [3, 2] sum prescale 2 on cpu");
  add(
      "postscale", kAllreduce, [](Request& r) { r.postscale = 3; },
      "allreduce f32 [3, 2] sum postscale 3 on cpu");
  add(
      "wire_dtype", kAllreduce, [](Request& r) { r.wire_dtype = DataType::BF16; },
      "allreduce f32 [3, 2] as bf16 sum on cpu");
  add(
      "device", kAllreduce, [](Request& r) { r.device.kind = DeviceKind::Cuda; },
      "allreduce f32 [3, 2] sum on cuda");
  add(
      "kind", kAllreduce, [](Request& r) { r.kind = Collective::Broadcast; },
      "broadcast f32 [3, 2] root 0 on cpu");
  return true;
}();

/// What all ranks ask for, equally, is refused on all of them.
void check_refused(const std::function<void(Request&)>& change, const std::string& expected) {
  run_group(2, [&](int, Runtime& runtime) {
    std::vector<float> values(6, 1.0F);
    for (int step = 0; step < 2; ++step) {
      Request request = sum_request(values, "x");
      change(request);
      check_contains(usage_error_of(runtime.submit(request)), expected);
    }
    check(values == std::vector<float>(6, 1.0F), "nothing was done");
    check_goes_on(runtime);
  });
}

/// What this rank alone can see to be wrong throws at once.
void check_refused_at_once(const std::function<void(Request&)>& change,
                           const std::string& expected) {
  run_group(1, [&](int, Runtime& runtime) {
    std::vector<float> values(6, 1.0F);
    Request request = sum_request(values, "x");
    change(request);
    check_contains(text_of<UsageError>([&] { runtime.submit(request); }), expected);
    check_goes_on(runtime);
  });
}

}  // namespace

TEST_CASE("ranks that disagree on the root are told what each sent") {
  run_group(2, [](int rank, Runtime& runtime) {
    std::vector<float> values(2, static_cast<float>(rank));
    Request request = sum_request(values, "b");
    request.kind = Collective::Broadcast;
    request.root = rank;
    const std::string text = usage_error_of(runtime.submit(request));
    check_contains(text, "rank 0: broadcast f32 [2] root 0 on cpu");
    check_contains(text, "rank 1: broadcast f32 [2] root 1 on cpu");
    check_goes_on(runtime);
  });
}

TEST_CASE("allgathers must agree on all but the first dimension") {
  run_group(2, [](int rank, Runtime& runtime) {
    std::vector<float> values(4);
    std::vector<float> output(8);
    Request request;
    request.kind = Collective::Allgather;
    request.shape = rank == 0 ? std::vector<std::int64_t>{2, 2} : std::vector<std::int64_t>{1, 4};
    request.input = values.data();
    request.output = output.data();
    check_contains(usage_error_of(runtime.submit(request)), "rank 1: allgather f32 [1, 4]");
    check_goes_on(runtime);
  });
}

TEST_CASE("a root out of range is refused on every rank") {
  for (const int root : {-1, 2}) {
    check_refused(
        [root](Request& request) {
          request.kind = Collective::Broadcast;
          request.root = root;
        },
        "root " + std::to_string(root) + " is out of range: there are ranks 0 to 1");
  }
}

TEST_CASE("an average of bools is refused on every rank") {
  check_refused(
      [](Request& request) {
        request.dtype = DataType::Bool;
        request.op = ReduceOp::Average;
      },
      "bools have no average");
}

TEST_CASE("a buffer on a device without a backend is refused on every rank") {
  check_refused([](Request& request) { request.device.kind = DeviceKind::Cuda; },
                "no backend for cuda");
}

TEST_CASE("an unknown process set is refused at once") {
  check_refused_at_once([](Request& request) { request.set.id = 3; },
                        "process set 3 does not exist");
}

TEST_CASE("a gather of scalars is refused on every rank") {
  check_refused(
      [](Request& request) {
        request.kind = Collective::Allgather;
        request.shape = {};
      },
      "a scalar has no first dimension");
}

TEST_CASE("impossible shapes are refused on every rank") {
  check_refused([](Request& request) { request.shape = {3, -1}; }, "negative dimension");
  check_refused([](Request& request) { request.shape = {std::int64_t{1} << 40, 1 << 30}; }, "2^62");
}

TEST_CASE("null buffers are refused at once") {
  check_refused_at_once([](Request& request) { request.input = nullptr; },
                        "allreduce 'x': input is null");
  check_refused_at_once([](Request& request) { request.output = nullptr; }, "output is null");
  check_refused_at_once(
      [](Request& request) {
        request.kind = Collective::Allgather;
        request.output = nullptr;
      },
      "neither output nor allocate_output");
}

TEST_CASE("a wire_dtype that is impossible is refused at once, with what to do") {
  const auto check_wire = [](DataType dtype, DataType wire, Collective kind) {
    check_refused_at_once(
        [&](Request& request) {
          request.kind = kind;
          request.dtype = dtype;
          request.wire_dtype = wire;
        },
        "rank 0: " + std::string(to_string(kind)) + " 'x': " + std::string(to_string(dtype)) +
            " cannot travel as " + std::string(to_string(wire)) +
            ": wire_dtype is for an allreduce of f32 or f64, and f16 or bf16. Leave it out");
  };
  for (const DataType dtype : kAllDataTypes) {
    for (const DataType wire : kAllDataTypes) {
      const bool is_full = dtype == DataType::F32 || dtype == DataType::F64;
      if (dtype == wire || (is_full && is_half(wire))) continue;
      check_wire(dtype, wire, Collective::Allreduce);
    }
  }
  for (const Collective kind : {Collective::Broadcast, Collective::Allgather, Collective::Alltoall,
                                Collective::Reducescatter}) {
    check_wire(DataType::F32, DataType::BF16, kind);
  }
  check_wire(DataType::F32, static_cast<DataType>(77), Collective::Allreduce);
  check_refused_at_once(
      [](Request& request) {
        request.wire_dtype = DataType::F16;
        request.symmetric = true;
      },
      "a symmetric allreduce cannot have a wire_dtype");
}

TEST_CASE("a name that begins with NUL is refused at once") {
  check_refused_at_once([](Request& request) { request.name = std::string(1, '\0'); }, "NUL");
}

TEST_CASE("only a reduction can go without a contribution") {
  check_refused_at_once(
      [](Request& request) {
        request.kind = Collective::Broadcast;
        request.contributes = false;
      },
      "contribution");
}

TEST_CASE("values outside their enumeration and scales that are no number are refused at once") {
  check_refused_at_once([](Request& request) { request.dtype = static_cast<DataType>(10); },
                        "none that there is");
  check_refused_at_once(
      [](Request& request) { request.op = static_cast<ReduceOp>(kReduceOpCount); },
      "none that there is");
  check_refused_at_once(
      [](Request& request) { request.kind = static_cast<Collective>(kCollectiveCount); },
      "none that there is");
  check_refused_at_once(
      [](Request& request) { request.postscale = std::numeric_limits<double>::quiet_NaN(); },
      "a scale is NaN");
}

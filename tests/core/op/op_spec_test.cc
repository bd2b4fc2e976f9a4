// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/op_spec.h"

#include <catch2/catch.hpp>

using namespace ronde;
using Shape = std::vector<std::int64_t>;

TEST_CASE("elements of a shape: a scalar has one") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({3, 4}) == 12);
  CHECK(element_count({3, 0, 4}) == 0);
}

TEST_CASE("what can be wrong with a shape") {
  CHECK_FALSE(shape_error({}, DataType::F64));
  CHECK_FALSE(shape_error({3, 4}, DataType::F64));
  CHECK_THAT(shape_error({3, -4}, DataType::F64).value(),
             Catch::Contains("[3, -4]") && Catch::Contains("negative"));
  const std::int64_t huge = std::int64_t{1} << 40;
  CHECK_THAT(shape_error({huge, huge}, DataType::U8).value(), Catch::Contains("2^62"));
  CHECK_FALSE(shape_error({huge, huge, 0}, DataType::U8));
  CHECK_FALSE(shape_error({std::int64_t{1} << 62}, DataType::U8));
  CHECK(shape_error({(std::int64_t{1} << 62) + 1}, DataType::U8));
  CHECK_FALSE(shape_error({std::int64_t{1} << 59}, DataType::F64));
  CHECK(shape_error({(std::int64_t{1} << 59) + 1}, DataType::F64));
}

TEST_CASE("only what matters to a kind of operation is compared") {
  Request request;
  request.dtype = DataType::I8;
  request.shape = {2};
  request.op = ReduceOp::Max;
  request.prescale = 2;
  request.postscale = 3;
  request.root = 7;
  request.kind = Collective::Allreduce;
  CHECK(spec_of(request).root == 0);
  CHECK(spec_of(request).op == ReduceOp::Max);
  CHECK(spec_of(request).prescale == 2);
  request.wire_dtype = request.dtype;
  CHECK_FALSE(spec_of(request).wire_dtype);
  request.wire_dtype = DataType::F16;
  CHECK(spec_of(request).wire_dtype == DataType::F16);
  const OpSpec as_f16 = spec_of(request);
  request.wire_dtype = DataType::BF16;
  CHECK_FALSE(spec_of(request) == as_f16);
  request.kind = Collective::Broadcast;
  CHECK(spec_of(request).root == 7);
  CHECK(spec_of(request).op == ReduceOp::Sum);
  CHECK(spec_of(request).postscale == 1);
  request.kind = Collective::Allgather;
  CHECK(spec_of(request).root == 0);
  CHECK(spec_of(request).shape == Shape{2});
  request.kind = Collective::Barrier;
  CHECK(spec_of(request).shape.empty());
  CHECK(spec_of(request).dtype == DataType::F32);
  const SpecPtr barrier = share(spec_of(request));
  request.refusal = "no memory";
  const SpecPtr refused = share(spec_of(request));
  CHECK_FALSE(is_same(refused, barrier));
  CHECK(refused->hash.value != barrier->hash.value);
  OpSpec group = *barrier;
  group.members = {*barrier};
  const std::size_t agreed = share(group)->hash.value;
  group.members = {*refused};
  CHECK(share(group)->hash.value != agreed);
}

TEST_CASE("a request as people read it") {
  OpSpec spec;
  spec.shape = {2, 3};
  CHECK(to_string(spec) == "allreduce f32 [2, 3] sum on cpu");
  spec.wire_dtype = DataType::BF16;
  CHECK(to_string(spec) == "allreduce f32 [2, 3] as bf16 sum on cpu");
  spec.wire_dtype.reset();
  spec.prescale = 0.5;
  spec.postscale = 2;
  spec.op = ReduceOp::Average;
  spec.device = DeviceKind::Cuda;
  spec.set = 4;
  CHECK(to_string(spec) ==
        "allreduce f32 [2, 3] average prescale 0.5 postscale 2 on cuda in process set 4");
  OpSpec broadcast;
  broadcast.kind = Collective::Broadcast;
  broadcast.root = 1;
  CHECK(to_string(broadcast) == "broadcast f32 [] root 1 on cpu");
  OpSpec barrier;
  barrier.kind = Collective::Barrier;
  CHECK(to_string(barrier) == "barrier on cpu");
  barrier.refusal = "no memory";
  CHECK(to_string(barrier) == "barrier on cpu, refused: no memory");
}

TEST_CASE("keys of operations without a name are no user's names") {
  CHECK(is_unnamed(unnamed_key(12)));
  CHECK_FALSE(is_unnamed("12"));
  CHECK_FALSE(is_unnamed(""));
  CHECK(display_name(Collective::Allgather, "x") == "allgather 'x'");
  CHECK(display_name(Collective::Barrier, unnamed_key(12)) == "barrier number 12 without a name");
  CHECK(display_name(Collective::Barrier, "") == "barrier without a name");
}

TEST_CASE("texts tell the process set, and what a group's members without a name are") {
  OpSpec sum;
  sum.set = 3;
  CHECK(display_name(sum, "x") == "allreduce 'x' in process set 3");
  CHECK(display_name(sum, unnamed_key(0)) == "allreduce number 0 without a name in process set 3");
  const std::string of_named = member_key("g", 1);
  const std::string of_unnamed = member_key(unnamed_key(7), 0);
  CHECK(is_unnamed(of_named));
  CHECK(is_unnamed(of_unnamed));
  CHECK(display_name(Collective::Allreduce, of_named) ==
        "allreduce number 1 without a name in the group with 'g'");
  CHECK(display_name(Collective::Allreduce, of_unnamed) ==
        "allreduce number 0 without a name in the group number 7 without a name");
  OpSpec group;
  group.set = 3;
  group.members = {sum, sum, sum};
  group.members[0].name = "g";
  CHECK(number_without_name(group, 1) == 0);
  CHECK(number_without_name(group, 2) == 1);
  CHECK(display_name(group, "g") == "the group of 3 operations with 'g' in process set 3");
  CHECK(display_name(group, unnamed_key(7)) ==
        "the group of 3 operations, number 7 without a name in process set 3");
}

TEST_CASE("messages tell who they are for, and their keys are no user's names") {
  CHECK(is_message(message_key(12)));
  CHECK_FALSE(is_message(unnamed_key(12)));
  CHECK_FALSE(is_unnamed(message_key(12)));
  CHECK_FALSE(is_message("12"));
  CHECK_FALSE(is_message(""));
  Request request;
  request.kind = Collective::Send;
  request.shape = {2};
  request.peer = 3;
  request.tag = 5;
  CHECK(display_name(spec_of(request), message_key(1)) == "send to rank 3 (tag 5)");
  CHECK(to_string(spec_of(request)) == "send f32 [2] to rank 3 (tag 5) on cpu");
  request.kind = Collective::Recv;
  request.peer = kAnyRank;
  CHECK(display_name(spec_of(request), message_key(1)) == "recv from any rank (tag 5)");
  request.set = ProcessSet{4};
  CHECK(display_name(spec_of(request), "") == "recv from any rank (tag 5) in process set 4");
  CHECK(display_name(Collective::Send, message_key(3)) == "send number 3");
  request.kind = Collective::Barrier;
  CHECK(spec_of(request).peer == 0);
  CHECK(display_name(spec_of(request), "x") == "barrier 'x' in process set 4");
}

TEST_CASE("every enumerator has its own name, and any other value one too") {
  for (const Collective kind :
       {Collective::Allreduce, Collective::Broadcast, Collective::Allgather, Collective::Barrier,
        Collective::Alltoall, Collective::Reducescatter, Collective::Send, Collective::Recv}) {
    CHECK(to_string(kind) != to_string(static_cast<Collective>(77)));
  }
  for (const ReduceOp op : kElementwiseOps) {
    CHECK(to_string(op) != to_string(static_cast<ReduceOp>(77)));
  }
  for (const DataType dtype : kAllDataTypes) {
    CHECK(to_string(dtype) != to_string(static_cast<DataType>(77)));
    CHECK(size_of(dtype) > 0);
  }
  CHECK(to_string(DeviceKind::Cuda) == "cuda");
  CHECK_FALSE(to_string(static_cast<DeviceKind>(77)).empty());
  CHECK(size_of(static_cast<DataType>(77)) == 0);
}

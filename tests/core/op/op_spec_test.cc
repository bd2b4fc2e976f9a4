// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/op_spec.h"

#include <catch2/catch.hpp>
#include <limits>

using namespace ronde;
using Shape = std::vector<std::int64_t>;

TEST_CASE("elements of a shape, and what can be wrong with it") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({3, 4}) == 12);
  CHECK(element_count({3, 0, 4}) == 0);
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

namespace {

std::string error_of(const Shape& splits, std::int64_t rows, int size) {
  OpSpec spec;
  spec.kind = Collective::Alltoall;
  spec.shape = {rows, 2};
  spec.splits = splits;
  return splits_error(spec, size).value_or("");
}

}  // namespace

TEST_CASE("the first ranks of a reducescatter get the rows that are left over") {
  CHECK(scattered_rows(7, 3) == Shape{3, 2, 2});
  CHECK(scattered_rows(8, 3) == Shape{3, 3, 2});
  CHECK(scattered_rows(9, 3) == Shape{3, 3, 3});
  CHECK(scattered_rows(2, 4) == Shape{1, 1, 0, 0});
  CHECK(scattered_rows(0, 2) == Shape{0, 0});
  CHECK(scattered_rows(5, 1) == Shape{5});
}

TEST_CASE("splits must be one for each rank, not negative, and add up") {
  CHECK(error_of({}, 6, 3).empty());
  CHECK(error_of({1, 2, 3}, 6, 3).empty());
  CHECK(error_of({0, 0, 6}, 6, 3).empty());
  CHECK(error_of({0, 0}, 0, 2).empty());
  CHECK_THAT(error_of({}, 7, 3), Catch::Contains("cannot be divided evenly among 3 ranks"));
  CHECK_THAT(error_of({6}, 6, 3), Catch::Contains("1 splits were given for 3 ranks"));
  CHECK_THAT(error_of({7, -1, 0}, 6, 3), Catch::Contains("[7, -1, 0] have a negative number"));
  CHECK_THAT(error_of({1, 2, 4}, 6, 3), Catch::Contains("do not add up"));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK_THAT(error_of({kMost, kMost, 8}, 6, 3), Catch::Contains("do not add up"));
}

TEST_CASE("ranks compare neither splits that are right nor their rows, and wrong ones as given") {
  const auto left_of = [](const Shape& shape, const Shape& splits) {
    OpSpec spec;
    spec.kind = Collective::Alltoall;
    spec.shape = shape;
    spec.splits = splits;
    leave_out_rows(spec, 2);
    return spec;
  };
  CHECK(left_of({5, 2}, {2, 3}) == left_of({7, 2}, {7, 0}));
  CHECK_FALSE(left_of({5, 2}, {2, 3}) == left_of({5, 3}, {2, 3}));
  CHECK_FALSE(left_of({4, 2}, {2, 2}) == left_of({4, 2}, {}));
  CHECK_FALSE(left_of({0, 2}, {0, 0}) == left_of({0, 2}, {}));
  CHECK(to_string(left_of({5, 2}, {2, 3})) == "alltoall f32 [*, 2] with splits on cpu");
  struct Wrong {
    Shape shape, splits;
  };
  const Wrong kinds[] = {{{5, 2}, {2, 2}}, {{5, 2}, {5}}, {{-5, 2}, {2, 3}}, {{}, {2, 3}}};
  for (const auto& [shape, splits] : kinds) {
    const OpSpec spec = left_of(shape, splits);
    CHECK(spec.shape == shape);
    CHECK(spec.splits == splits);
    CHECK_FALSE(spec.has_splits);
  }
}

TEST_CASE("rows are known unless a rank gave splits, and a sum that is too large is the largest") {
  CHECK_FALSE(RankRows{}.has_splits());
  CHECK_FALSE(RankRows{{6, 9, 0}}.has_splits());
  CHECK(RankRows{{6, kHasSplits, 0}}.has_splits());
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(total_rows({}) == 0);
  CHECK(total_rows({1, 2, 3}) == 6);
  CHECK(total_rows({kMost, 0}) == kMost);
  CHECK(total_rows({kMost - 1, 2}) == kMost);
}

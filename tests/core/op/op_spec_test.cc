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

TEST_CASE("texts name process set, number and group of what has no name, and a message's peer") {
  OpSpec sum;
  sum.set = 3;
  CHECK(to_string(sum) == "allreduce f32 [] sum on cpu in process set 3");
  CHECK(display_name(sum, unnamed_key(0)) == "allreduce number 0 without a name in process set 3");
  CHECK(display_name(Collective::Allreduce, member_key(unnamed_key(7), 0)) ==
        "allreduce number 0 without a name in the group number 7 without a name");
  OpSpec group = sum;
  group.members = {sum, sum, sum};
  CHECK(display_name(group, "g") == "the group of 3 operations with 'g' in process set 3");
  CHECK(display_name(Collective::Send, message_key(3)) == "send number 3");
  Request request;
  request.kind = Collective::Recv;
  request.peer = kAnyRank;
  request.tag = 5;
  request.set = ProcessSet{4};
  CHECK(display_name(spec_of(request), "") == "recv from any rank (tag 5) in process set 4");
  request = {};
  request.kind = Collective::Barrier;
  request.refusal = "no memory";
  CHECK(to_string(spec_of(request)) == "barrier on cpu, refused: no memory");
}

TEST_CASE("splits whose sum would wrap around to the rows do not add up") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  OpSpec spec;
  spec.kind = Collective::Alltoall;
  spec.shape = {6, 2};
  spec.splits = {kMost, kMost, 8};
  CHECK_THAT(splits_error(spec, 3).value(), Catch::Contains("do not add up"));
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

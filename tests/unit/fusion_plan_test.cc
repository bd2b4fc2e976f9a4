// SPDX-License-Identifier: Apache-2.0
#include "core/src/fusion_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace {

using namespace ronde;
using Plan = std::vector<std::vector<std::size_t>>;

PlanItem item(std::uint64_t bytes, DataType dtype = DataType::F32,
              Collective kind = Collective::Allreduce) {
  PlanItem made;
  made.meta.kind = kind;
  made.meta.dtype = dtype;
  made.bytes = bytes;
  return made;
}

bool alike(const PlanItem& a, const PlanItem& b) {
  RequestMeta same_shape = b.meta;
  same_shape.shape = a.meta.shape;
  return a.meta == same_shape;
}

bool fuses(const PlanItem& a) {
  return a.meta.kind == Collective::Allreduce || a.meta.kind == Collective::Broadcast;
}

std::uint64_t bytes_of(const std::vector<std::size_t>& bucket, const std::vector<PlanItem>& items) {
  std::uint64_t bytes = 0;
  for (const std::size_t index : bucket) bytes += items[index].bytes;
  return bytes;
}

/// Why `plan` breaks what plan_fusion promises, or empty.
std::string broken_promise(const Plan& plan, const std::vector<PlanItem>& items,
                           std::uint64_t limit) {
  std::vector<int> seen(items.size(), 0);
  for (std::size_t b = 0; b < plan.size(); ++b) {
    const auto& bucket = plan[b];
    if (bucket.empty()) return "an empty bucket";
    if (!std::is_sorted(bucket.begin(), bucket.end())) return "a bucket out of order";
    if (b > 0 && plan[b - 1].front() > bucket.front()) return "buckets out of order";
    for (const std::size_t index : bucket) {
      ++seen.at(index);
      if (!alike(items[bucket.front()], items[index])) return "different items share a bucket";
      if (bucket.size() > 1 && !fuses(items[index])) return "fused what must not be";
    }
    if (bucket.size() > 1 && bytes_of(bucket, items) > limit) return "a bucket over the limit";
  }
  if (std::any_of(seen.begin(), seen.end(), [](int times) { return times != 1; })) {
    return "an item not exactly once";
  }
  // Look-ahead leaves nothing behind that would have fitted: an item that opens a bucket fits into
  // no earlier one of its like, as that one stood when the item was looked at.
  for (std::size_t b = 0; b < plan.size(); ++b) {
    const std::size_t opener = plan[b].front();
    for (std::size_t earlier = 0; earlier < b; ++earlier) {
      if (!fuses(items[opener]) || !alike(items[plan[earlier].front()], items[opener])) continue;
      std::uint64_t bytes = items[opener].bytes;
      for (const std::size_t index : plan[earlier])
        bytes += index < opener ? items[index].bytes : 0;
      if (bytes <= limit) return "an item that fitted into an earlier bucket was left out";
    }
  }
  return {};
}

std::vector<PlanItem> random_items(std::mt19937& random) {
  std::vector<PlanItem> items(random() % 30);
  for (PlanItem& made : items) {
    made.meta.kind = static_cast<Collective>(random() % 3);
    made.meta.dtype = random() % 2 == 0 ? DataType::F32 : DataType::F16;
    if (random() % 3 == 0) made.meta.wire_dtype = DataType::BF16;
    made.meta.op = random() % 3 == 0 ? ReduceOp::Max : ReduceOp::Sum;
    made.meta.root = static_cast<int>(random() % 2);
    made.meta.postscale = random() % 4 == 0 ? 0.5 : 1.0;
    made.meta.shape = {static_cast<std::int64_t>(random() % 5)};
    made.bytes = 1 + random() % 140;
  }
  return items;
}

}  // namespace

TEST_CASE("operations that fill the limit exactly share a bucket, one byte more does not") {
  CHECK(plan_fusion(std::vector<PlanItem>{item(60), item(40)}, 100) == Plan{{0, 1}});
  CHECK(plan_fusion(std::vector<PlanItem>{item(60), item(41)}, 100) == Plan{{0}, {1}});
}

TEST_CASE("sizes near the end of the number range do not wrap around") {
  const std::uint64_t huge = ~std::uint64_t{0};
  CHECK(plan_fusion(std::vector<PlanItem>{item(10), item(huge)}, 100) == Plan{{0}, {1}});
  CHECK(plan_fusion(std::vector<PlanItem>{item(huge), item(10)}, huge) == Plan{{0}, {1}});
}

TEST_CASE("whatever differs but the shape keeps operations apart") {
  const auto apart = [](auto change) {
    std::vector<PlanItem> items = {item(1), item(1)};
    change(items[1].meta);
    return plan_fusion(items, 100).size() == 2;
  };
  CHECK(apart([](RequestMeta& meta) { meta.kind = Collective::Broadcast; }));
  CHECK(apart([](RequestMeta& meta) { meta.dtype = DataType::I32; }));
  CHECK(apart([](RequestMeta& meta) { meta.wire_dtype = DataType::BF16; }));
  CHECK(apart([](RequestMeta& meta) { meta.op = ReduceOp::Min; }));
  CHECK(apart([](RequestMeta& meta) { meta.device = DeviceKind::Cuda; }));
  CHECK(apart([](RequestMeta& meta) { meta.set = 1; }));
  CHECK(apart([](RequestMeta& meta) { meta.root = 1; }));
  CHECK(apart([](RequestMeta& meta) { meta.prescale = 0.5; }));
  CHECK(apart([](RequestMeta& meta) { meta.postscale = 0.5; }));
  CHECK_FALSE(apart([](RequestMeta& meta) { meta.shape = {7, 7}; }));
}

TEST_CASE(
    "random plans keep every promise, with a limit and without fusion, and are the same each "
    "time") {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const std::vector<PlanItem> items = random_items(random);
    const std::uint64_t limit = seed % 10 == 0 ? 0 : random() % 300;
    const Plan plan = plan_fusion(items, limit);
    CAPTURE(seed, limit);
    REQUIRE(broken_promise(plan, items, limit).empty());
    REQUIRE(plan_fusion(items, limit) == plan);
  }
}

TEST_CASE("a plan does not depend on shapes, which ranks may not share") {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<PlanItem> items = random_items(random);
    const Plan plan = plan_fusion(items, 200);
    for (PlanItem& made : items) made.meta.shape = {static_cast<std::int64_t>(random())};
    REQUIRE(plan_fusion(items, 200) == plan);
  }
}

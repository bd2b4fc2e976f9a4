// SPDX-License-Identifier: Apache-2.0
#include "core/src/fusion_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace {

using namespace ronde;
using Plan = std::vector<std::vector<std::size_t>>;

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
    made.meta.prescale = random() % 8 == 0 ? 0.5 : 1.0;
    made.meta.device = random() % 8 == 0 ? DeviceKind::Cuda : DeviceKind::Cpu;
    made.meta.set = random() % 8 == 0 ? 1 : 0;
    made.meta.shape = {static_cast<std::int64_t>(random() % 5)};
    made.bytes = 1 + random() % 140;
  }
  return items;
}

}  // namespace

TEST_CASE("buckets are filled to the limit exactly, and sizes do not wrap around") {
  const auto plan = [](std::uint64_t first, std::uint64_t second, std::uint64_t limit) {
    std::vector<PlanItem> items(2);
    items[0].bytes = first;
    items[1].bytes = second;
    return plan_fusion(items, limit);
  };
  const std::uint64_t huge = ~std::uint64_t{0};
  CHECK(plan(60, 40, 100) == Plan{{0, 1}});
  CHECK(plan(60, 41, 100) == Plan{{0}, {1}});
  CHECK(plan(10, huge, 100) == Plan{{0}, {1}});
  CHECK(plan(huge, 10, huge) == Plan{{0}, {1}});
}

TEST_CASE(
    "random plans keep every promise, with a limit and without fusion, and are the same whatever "
    "the shapes, which ranks may not share") {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::vector<PlanItem> items = random_items(random);
    const std::uint64_t limit = seed % 10 == 0 ? 0 : random() % 300;
    const Plan plan = plan_fusion(items, limit);
    CAPTURE(seed, limit);
    REQUIRE(broken_promise(plan, items, limit).empty());
    for (PlanItem& made : items) made.meta.shape = {static_cast<std::int64_t>(random())};
    REQUIRE(plan_fusion(items, limit) == plan);
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "core/src/agree/fusion_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace {

using namespace ronde;
using Plan = std::vector<std::vector<std::size_t>>;

bool may_share(const PlanItem& a, const PlanItem& b) {
  OpSpec same_shape = *b.spec;
  same_shape.shape = a.spec->shape;
  const bool fuses = a.spec->kind == Collective::Allreduce || a.spec->kind == Collective::Broadcast;
  return fuses && *a.spec == same_shape;
}

/// Each item goes into the last bucket of its like, if that has room for it.
Plan next_fit(const std::vector<PlanItem>& items, std::uint64_t limit) {
  Plan plan;
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::size_t bucket = plan.size();
    while (bucket > 0 && !may_share(items[plan[bucket - 1][0]], items[i])) --bucket;
    if (bucket == 0 || bytes[bucket - 1] + items[i].bytes > limit) bucket = plan.size() + 1;
    plan.resize(std::max(plan.size(), bucket));
    bytes.resize(plan.size());
    plan[bucket - 1].push_back(i);
    bytes[bucket - 1] += items[i].bytes;
  }
  return plan;
}

std::vector<PlanItem> random_items(std::mt19937& random) {
  std::vector<PlanItem> items(random() % 30);
  for (PlanItem& made : items) {
    OpSpec spec;
    spec.kind = static_cast<Collective>(random() % 3);
    spec.dtype = random() % 2 == 0 ? DataType::F32 : DataType::F16;
    if (random() % 3 == 0) spec.wire_dtype = DataType::BF16;
    spec.op = random() % 3 == 0 ? ReduceOp::Max : ReduceOp::Sum;
    spec.root = static_cast<int>(random() % 2);
    spec.postscale = random() % 4 == 0 ? 0.5 : 1.0;
    spec.prescale = random() % 8 == 0 ? 0.5 : 1.0;
    spec.device = random() % 8 == 0 ? DeviceKind::Cuda : DeviceKind::Cpu;
    spec.set = random() % 8 == 0 ? 1 : 0;
    spec.shape = {static_cast<std::int64_t>(random() % 5)};
    made.spec = share(spec);
    made.bytes = 1 + random() % 140;
  }
  return items;
}

}  // namespace

TEST_CASE("buckets are filled to the limit exactly, and sizes do not wrap around") {
  const auto plan = [](std::uint64_t first, std::uint64_t second, std::uint64_t limit) {
    std::vector<PlanItem> items(2);
    items[0].spec = items[1].spec = share(OpSpec());
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

TEST_CASE("a bucket takes no small gradient from behind a large one that did not fit") {
  std::vector<PlanItem> items(6);
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].spec = share(OpSpec());
    items[i].bytes = i % 2 == 0 ? 60 : 1;  // weights and biases
  }
  CHECK(plan_fusion(items, 100) == Plan{{0, 1}, {2, 3}, {4, 5}});
}

TEST_CASE(
    "random plans keep every promise, with a limit and without, whatever the shapes of each rank") {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::vector<PlanItem> items = random_items(random);
    const std::uint64_t limit = seed % 10 == 0 ? 0 : random() % 300;
    const Plan plan = plan_fusion(items, limit);
    CAPTURE(seed, limit);
    REQUIRE(plan == next_fit(items, limit));
    for (PlanItem& made : items) {
      OpSpec other = *made.spec;
      other.shape = {static_cast<std::int64_t>(random())};
      made.spec = share(other);
    }
    REQUIRE(plan_fusion(items, limit) == plan);
  }
}

// SPDX-License-Identifier: Apache-2.0
// One pass over the operations: each that is in no bucket yet opens one, which takes the later
// operations that agree with it, up to the first that does not fit. A smaller one behind that would
// fit, but a frozen schedule would then run the bucket no earlier than that operation is submitted:
// the last bias of a net would put off all its gradients to the end of backward.
#include "core/src/agree/fusion_plan.h"

#include <algorithm>

namespace ronde {
namespace {

bool alike(const PlanItem& first, const PlanItem& other) {
  const OpSpec& a = *first.spec;
  const OpSpec& b = *other.spec;
  return first.average_over == other.average_over && a.kind == b.kind && a.dtype == b.dtype &&
         a.wire_dtype == b.wire_dtype && a.op == b.op && a.device == b.device && a.set == b.set &&
         a.root == b.root && a.prescale == b.prescale && a.postscale == b.postscale &&
         a.symmetric() == b.symmetric();
}

/// Buckets of symmetric buffers need no packing and can start once their last operation is ready:
/// small buckets start early, but too many of them cost more to agree on.
std::uint64_t limit_of_symmetric(std::span<const PlanItem> items, std::uint64_t limit_bytes) {
  constexpr std::uint64_t kEnough = std::uint64_t{4} << 20;
  constexpr std::uint64_t kMostBuckets = 128;
  std::uint64_t total = 0;
  for (const PlanItem& item : items) total += item.spec->symmetric() ? item.bytes : 0;
  return std::min(limit_bytes, std::max(kEnough, total / kMostBuckets));
}

}  // namespace

std::vector<std::vector<std::size_t>> plan_fusion(std::span<const PlanItem> items,
                                                  std::uint64_t limit_bytes) {
  std::vector<std::vector<std::size_t>> buckets;
  std::vector<bool> planned(items.size(), false);
  const std::uint64_t symmetric_limit = limit_of_symmetric(items, limit_bytes);
  for (std::size_t first = 0; first < items.size(); ++first) {
    if (planned[first]) continue;
    std::vector<std::size_t> bucket{first};
    std::uint64_t bytes = items[first].bytes;
    const std::uint64_t limit = items[first].spec->symmetric() ? symmetric_limit : limit_bytes;
    const Collective kind = items[first].spec->kind;
    const bool fuses = kind == Collective::Allreduce || has_root(kind);
    const bool open = fuses && bytes <= limit;
    for (std::size_t next = first + 1; open && next < items.size(); ++next) {
      if (planned[next] || !alike(items[first], items[next])) continue;
      if (items[next].bytes > limit - bytes) break;
      planned[next] = true;
      bytes += items[next].bytes;
      bucket.push_back(next);
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "fusion_plan.h"

namespace ronde {
namespace {

bool may_fuse(const RequestMeta& meta) {
  return meta.kind == Collective::Allreduce || meta.kind == Collective::Broadcast;
}

bool alike(const RequestMeta& a, const RequestMeta& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.device == b.device &&
         a.set == b.set && a.root == b.root && a.prescale == b.prescale &&
         a.postscale == b.postscale;
}

}  // namespace

std::vector<std::vector<std::size_t>> plan_fusion(std::span<const PlanItem> items,
                                                  std::uint64_t limit_bytes) {
  std::vector<std::vector<std::size_t>> buckets;
  std::vector<bool> planned(items.size(), false);
  for (std::size_t first = 0; first < items.size(); ++first) {
    if (planned[first]) continue;
    std::vector<std::size_t> bucket{first};
    std::uint64_t bytes = items[first].bytes;
    const bool open = may_fuse(items[first].meta) && bytes <= limit_bytes;
    for (std::size_t next = first + 1; open && next < items.size(); ++next) {
      if (planned[next] || !alike(items[first].meta, items[next].meta)) continue;
      if (items[next].bytes > limit_bytes - bytes) continue;
      planned[next] = true;
      bytes += items[next].bytes;
      bucket.push_back(next);
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

}  // namespace ronde

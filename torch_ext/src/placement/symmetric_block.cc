// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/placement/symmetric_block.h"

#include <ATen/ops/full.h>

#include <cstdint>
#include <limits>

#include "ronde/ronde.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

std::int64_t greatest(std::int64_t mine, const std::string& name, ProcessSet set,
                      std::chrono::nanoseconds timeout) {
  const CallerWaits waits;
  const at::Tensor number = at::full({}, mine, at::kLong);
  return start_max(name, number, set, timeout).wait().item<std::int64_t>();
}

}  // namespace

std::shared_ptr<SymmetricBlock> make_symmetric_block(const std::string& name, std::size_t bytes,
                                                     ProcessSet set,
                                                     std::chrono::nanoseconds timeout) {
  const std::shared_ptr<SymmetricHeap> heap = runtime_of(set).symmetric_heap();
  if (!heap) return nullptr;
  // Finds the lowest place that is free on every rank: each looks from the highest that any has
  // found, until that is free for all. Ranks may have given back different blocks.
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t highest = 0;
  for (;;) {
    const auto place = heap->find(bytes, static_cast<std::size_t>(highest));
    const std::int64_t mine = place ? static_cast<std::int64_t>(*place) : kNone;
    highest = greatest(mine, name, set, timeout);
    if (highest == kNone) return nullptr;
    const auto offset = static_cast<std::size_t>(highest);
    std::shared_ptr<SymmetricBlock> block;
    if (mine == highest && heap->reserve(offset, bytes)) {
      block = std::make_shared<SymmetricBlock>(heap, offset);
    }
    if (greatest(block ? 0 : 1, name, set, timeout) == 0) return block;
  }
}

}  // namespace ronde::detail

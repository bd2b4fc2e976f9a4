// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/placement/symmetric_block.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "ronde/ronde.h"

namespace ronde::detail {
namespace {

std::int64_t agreed(std::int64_t mine, ReduceOp op, const std::string& name, ProcessSet set,
                    std::chrono::nanoseconds timeout) {
  std::int64_t result = mine;
  Request request;
  request.name = name;
  request.dtype = DataType::I64;
  request.input = request.output = &result;
  request.op = op;
  request.set = set;
  request.timeout = timeout;
  run(std::move(request));
  return result;
}

}  // namespace

std::shared_ptr<SymmetricBlock> make_symmetric_block(const std::string& name, std::size_t bytes,
                                                     ProcessSet set,
                                                     std::chrono::nanoseconds timeout) {
  const std::shared_ptr<SymmetricHeap> heap = default_runtime().symmetric_heap();
  if (!heap) return nullptr;
  // The lowest place that is free on every rank: all go up until nobody has to go further. Ranks
  // may have given back different blocks.
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t highest = 0;
  for (;;) {
    const auto place = heap->find(bytes, static_cast<std::size_t>(highest));
    const std::int64_t mine = place ? static_cast<std::int64_t>(*place) : kNone;
    highest = agreed(mine, ReduceOp::Max, name, set, timeout);
    if (highest == kNone) return nullptr;
    const auto offset = static_cast<std::size_t>(highest);
    std::shared_ptr<SymmetricBlock> block;
    if (mine == highest && heap->reserve(offset, bytes)) {
      block = std::make_shared<SymmetricBlock>(heap, offset);
    }
    if (agreed(block ? 1 : 0, ReduceOp::Min, name, set, timeout) == 1) return block;
  }
}

}  // namespace ronde::detail

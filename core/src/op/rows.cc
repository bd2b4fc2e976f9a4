// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/rows.h"

#include <algorithm>
#include <limits>

#include "ronde/division.h"

namespace ronde {

std::vector<std::int64_t> scattered_rows(std::int64_t rows, int size) {
  const auto counts = even_counts(static_cast<std::size_t>(rows), static_cast<std::size_t>(size));
  return {counts.begin(), counts.end()};
}

Problem splits_error(const OpSpec& spec, int size) {
  const std::int64_t rows = spec.shape.at(0);
  const std::vector<std::int64_t>& splits = spec.splits;
  if (splits.empty()) {
    if (rows % size == 0) return std::nullopt;
    return "the first dimension of " + to_string(spec.shape) + " cannot be divided evenly among " +
           std::to_string(size) + " ranks; give splits";
  }
  if (splits.size() != static_cast<std::size_t>(size)) {
    return std::to_string(splits.size()) + " splits were given for " + std::to_string(size) +
           " ranks; give one for each rank";
  }
  if (std::ranges::any_of(splits, [](std::int64_t split) { return split < 0; })) {
    return "splits " + to_string(splits) + " have a negative number";
  }
  if (total_rows(splits) != rows) {
    return "splits " + to_string(splits) + " do not add up to the first dimension of " +
           to_string(spec.shape);
  }
  return std::nullopt;
}

void leave_out_rows(OpSpec& spec, int size) {
  if (spec.splits.empty() || spec.shape.empty()) return;
  if (shape_error(spec.shape, spec.dtype) || splits_error(spec, size)) return;
  spec.has_splits = true;
  spec.splits.clear();
  spec.shape[0] = 0;
}

bool RankRows::empty() const {
  return first_dims.empty() && std::ranges::all_of(members, &RankRows::empty);
}

bool RankRows::has_splits() const {
  return std::ranges::find(first_dims, kHasSplits) != first_dims.end();
}

std::int64_t total_rows(const std::vector<std::int64_t>& rows) noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t total = 0;
  for (const std::int64_t more : rows) total = more > kMost - total ? kMost : total + more;
  return total;
}

}  // namespace ronde

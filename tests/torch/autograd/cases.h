// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support.h"

namespace ronde_test::gradients_test {

using ronde::ReduceOp;

/// A collective that has gradients, with what one process would compute.
struct Case {
  std::string name;
  std::function<std::vector<std::int64_t>(int rank)> shape;
  /// What a rank does.
  std::function<at::Tensor(const at::Tensor& tensor)> collective;
  /// What all ranks get, from what all have.
  std::function<Tensors(const Tensors& tensors)> whole;
};

std::vector<Case> single_cases();
std::vector<Case> group_cases();

inline std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

/// Where the cases run: among all ranks, or in this set, whose numbers count then.
inline ronde::ProcessSet here;

inline int ranks() {
  return static_cast<int>(ronde::ranks_of(here).size());
}

inline int own_rank() {
  return ronde::rank_in(here).value();
}

inline std::function<std::vector<std::int64_t>(int)> same(const std::vector<std::int64_t>& shape) {
  return [shape](int) { return shape; };
}

/// The same tensor for every rank.
inline Tensors for_all(const at::Tensor& tensor) {
  return Tensors(index(ranks()), tensor);
}

inline at::Tensor total(const Tensors& tensors) {
  return at::stack(tensors).sum(0);
}

/// Rows a rank gets of `rows`, the first ranks one more.
inline std::vector<std::int64_t> divided(std::int64_t rows) {
  std::vector<std::int64_t> sizes(index(ranks()), rows / ranks());
  for (int rank = 0; rank < rows % ranks(); ++rank) ++sizes[index(rank)];
  return sizes;
}

inline ronde::AllreduceOptions in_set(ronde::AllreduceOptions options) {
  options.process_set = here;
  return options;
}

}  // namespace ronde_test::gradients_test

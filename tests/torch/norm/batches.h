// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/torch/support.h"

namespace ronde_test {

/// How many samples a rank has.
using Samples = std::function<std::int64_t(int rank)>;

inline std::int64_t three_each(int) {
  return 3;
}

inline std::int64_t uneven(int rank) {
  return 1 + 2 * rank;
}

/// None on the last rank of several.
inline std::int64_t none_on_the_last(int rank) {
  const int last = ronde::size() - 1;
  return last > 0 && rank == last ? 0 : 2 + rank;
}

/// None on the first rank of several.
inline std::int64_t none_on_the_first(int rank) {
  return ronde::size() > 1 && rank == 0 ? 0 : 3;
}

/// The batches of all ranks, in rank order; far from mean 0 and variance 1.
inline Tensors batches(const Samples& samples, const std::vector<std::int64_t>& sample,
                       std::int64_t seed, at::ScalarType dtype = at::kDouble) {
  return by_rank([&](int rank) {
    std::vector<std::int64_t> shape = sample;
    shape.insert(shape.begin(), samples(rank));
    return (normal(shape, 100 * seed + rank) * 3 + 5 + rank).to(dtype);
  });
}

/// The rows of this rank of what one process has for all.
inline at::Tensor rows_of_mine(const at::Tensor& whole, const Tensors& all) {
  std::int64_t first = 0;
  for (int rank = 0; rank < ronde::rank(); ++rank) first += all[index(rank)].size(0);
  return whole.narrow(0, first, mine_of(all).size(0));
}

inline at::Tensor sum_over_ranks(const at::Tensor& part) {
  return ronde::allreduce(part.detach().to(at::kDouble), {.op = ReduceOp::Sum});
}

}  // namespace ronde_test

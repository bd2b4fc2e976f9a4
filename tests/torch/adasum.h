// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/support/oracle/adasum_oracle.h"
#include "tests/torch/support.h"

namespace ronde_test {

/// What Adasum makes of the vectors of all ranks, in f64.
inline at::Tensor adasum(const Tensors& of_ranks) {
  std::vector<std::vector<double>> vectors;
  for (const at::Tensor& tensor : of_ranks) {
    const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous();
    const auto* const begin = flat.const_data_ptr<double>();
    vectors.emplace_back(begin, begin + flat.numel());
  }
  std::vector<double> values = ronde::test::adasum_of(vectors).values;
  return at::tensor(values, at::kDouble).view(of_ranks.front().sizes());
}

}  // namespace ronde_test

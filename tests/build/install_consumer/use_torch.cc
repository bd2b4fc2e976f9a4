// SPDX-License-Identifier: Apache-2.0
// Tensors through an installed Ronde.
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ronde/ronde.h>
#include <ronde/torch/collectives.h>

#include <iostream>

int main() {
  ronde::init();
  const at::Tensor ones = at::ones({3});
  const bool same = at::equal(ronde::allreduce(ones, {.name = "ones"}), ones);
  std::cout << (same ? "equal" : "different") << '\n';
  ronde::shutdown();
  return same ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
#include "digits/digits.h"

#include <torch/torch.h>
// LibTorch defines a CHECK of its own; in the tests it is Catch2's.
#undef CHECK
#include <catch2/catch.hpp>
#include <numeric>

#include "common/table.h"

namespace example {
namespace {

/// Everything that a set holds, by its batches.
torch::data::Example<> all_of(Digits digits) {
  std::vector<std::size_t> indices(digits.size().value());
  std::iota(indices.begin(), indices.end(), 0);
  return digits.get_batch(indices);
}

}  // namespace

TEST_CASE("every image of the file is in one of the two sets, with its digit") {
  const auto [train, test] = read_digits();
  const auto learn = all_of(train);
  const auto held_out = all_of(test);
  CHECK(learn.data.sizes() == torch::IntArrayRef({1440, 1, 8, 8}));
  CHECK(held_out.data.sizes() == torch::IntArrayRef({357, 1, 8, 8}));

  const Table table = read_table(digits_path(), {.header = false, .labels = true}, {});
  std::int64_t next[2] = {0, 0};
  for (std::int64_t row = 0; row < table.rows; ++row) {
    const bool is_held_out = row % 5 == 0 && row < 1785;
    const auto& set = is_held_out ? held_out : learn;
    const std::int64_t at = next[is_held_out ? 1 : 0]++;
    const auto first = table.values.begin() + row * 64;
    const torch::Tensor pixels =
        torch::tensor(std::vector<double>(first, first + 64), torch::kFloat64);
    const auto label = static_cast<std::size_t>(table.labels[static_cast<std::size_t>(row)]);
    INFO("row " << row);
    CHECK(torch::equal(set.data[at].flatten() * 16, pixels));
    CHECK(std::to_string(set.target[at].item<std::int64_t>()) == table.label_names[label]);
  }
}

}  // namespace example

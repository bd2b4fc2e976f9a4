// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <torch/data/datasets/base.h>
#include <torch/types.h>

namespace example {

/// Images of handwritten digits, for LibTorch's loaders: a batch has the images as its data and the
/// digits as its target.
class Digits : public torch::data::datasets::BatchDataset<Digits, torch::data::Example<>> {
 public:
  /// `images`: [n, 1, 8, 8]; `labels`: [n], int64.
  Digits(torch::Tensor images, torch::Tensor labels);

  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

  /// Returns one of `parts` equal parts: images `part`, `part + parts`, ...
  torch::data::Example<> part(int part, int parts) const;

 private:
  torch::Tensor images_;
  torch::Tensor labels_;
};

struct DigitSets {
  Digits train;
  Digits test;
};

/// Can be divided among 1 to 6, and 8 ranks.
inline constexpr std::int64_t kTrainImages = 1440;

/// The 1797 digits that scripts/deps.sh fetches, 64-bit floats from 0 to 1. Every fifth is held out
/// for the test, 357 in all.
/// Throws InputError if the file is not there or holds something else.
DigitSets read_digits();

}  // namespace example

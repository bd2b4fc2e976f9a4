// SPDX-License-Identifier: Apache-2.0
#include "images/photo_dataset.h"

#include <utility>

#include "common/counter_random.h"
#include "images/resample.h"

namespace edsr {
namespace {

torch::Tensor cut(const torch::Tensor& image, std::int64_t top, std::int64_t left,
                  std::int64_t side) {
  return image.slice(1, top, top + side).slice(2, left, left + side);
}

}  // namespace

torch::Tensor apply_symmetry(const torch::Tensor& image, std::int64_t symmetry) {
  torch::Tensor result = (symmetry & 4) != 0 ? image.transpose(1, 2) : image;
  if ((symmetry & 2) != 0) result = result.flip(1);
  if ((symmetry & 1) != 0) result = result.flip(2);
  return result;
}

PhotoDataset::PhotoDataset(std::shared_ptr<const std::vector<Photograph>> photographs,
                           const PatchOptions& options)
    : photographs_(std::move(photographs)),
      options_(options),
      epoch_(std::make_shared<std::atomic<std::int64_t>>(0)) {}

torch::data::Example<> PhotoDataset::get(std::size_t index) {
  example::CounterRandom random(options_.seed, static_cast<std::uint64_t>(epoch_->load()), index);
  const Photograph& photograph = (*photographs_)[index % photographs_->size()];
  const std::int64_t side = options_.patch;
  const std::int64_t top = random.below(photograph.low.size(1) - side + 1);
  const std::int64_t left = random.below(photograph.low.size(2) - side + 1);
  const std::int64_t symmetry = random.below(8);
  const std::int64_t scale = options_.scale;
  const torch::Tensor low = cut(photograph.low, top, left, side);
  const torch::Tensor high = cut(photograph.high, top * scale, left * scale, side * scale);
  return {to_unit(apply_symmetry(low, symmetry)).contiguous(),
          to_unit(apply_symmetry(high, symmetry)).contiguous()};
}

std::optional<std::size_t> PhotoDataset::size() const {
  return static_cast<std::size_t>(options_.samples);
}

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>
#include <torch/types.h>

#include "images/photographs.h"

namespace edsr {

struct PatchOptions {
  std::int64_t patch = 48;  ///< side of the low-resolution patch, pixels
  std::int64_t scale = 2;
  std::int64_t samples = 0;  ///< samples per epoch; sample i is cut from photograph i mod count
  std::uint64_t seed = 1;
};

/// One of the eight symmetries of a square applied to [C, H, W]: bit 0 flips left-right, bit 1
/// flips top-bottom, bit 2 transposes (first). Rotations are combinations of these.
torch::Tensor apply_symmetry(const torch::Tensor& image, std::int64_t symmetry);

/// Random pairs of patches, low resolution [3, P, P] and high resolution [3, P * scale, P * scale],
/// float in [0, 1], with a random symmetry. Sample `index` is a pure function of (seed, epoch,
/// index), so neither rank, worker nor order changes it.
///
/// Copies share the photographs and the epoch: the DataLoader hands a copy to each worker. `get`
/// may run in several threads; `set_epoch` only between two passes over the loader.
class PhotoDataset : public torch::data::datasets::Dataset<PhotoDataset> {
 public:
  PhotoDataset(std::shared_ptr<const std::vector<Photograph>> photographs,
               const PatchOptions& options);

  torch::data::Example<> get(std::size_t index) override;
  std::optional<std::size_t> size() const override;

  void set_epoch(std::int64_t epoch) { epoch_->store(epoch); }

 private:
  std::shared_ptr<const std::vector<Photograph>> photographs_;
  PatchOptions options_;
  std::shared_ptr<std::atomic<std::int64_t>> epoch_;
};

}  // namespace edsr

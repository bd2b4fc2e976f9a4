// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>
#include <torch/types.h>

namespace edsr {

/// A photograph and its bicubic counterpart, both uint8 [3, H, W]; the high resolution measures
/// exactly `scale` times the low one.
struct Photograph {
  std::string name;
  torch::Tensor high;
  torch::Tensor low;
};

/// How image files become photographs. Sizes are in pixels.
struct LoadOptions {
  std::int64_t min_side = 0;  ///< smaller images are left out
  std::int64_t max_side = 0;  ///< larger ones are shrunk; 0: never
  std::int64_t scale = 2;
  std::int64_t patch = 1;  ///< that must fit into the low resolution
};

/// Loads the JPEG and PNG files of each place (a folder, with all its sub-folders but without
/// symbolic links, or one image file), sorted by path. In a folder the extension tells images from
/// other files; adds the number of those, and of images that are too small, to `left_out`. Throws
/// InputError for a place that cannot be read, a corrupt image, and one into which no patch fits.
std::vector<Photograph> load_photographs(const std::vector<std::filesystem::path>& places,
                                         const LoadOptions& options, std::size_t& left_out);

/// Takes `count` photographs out of the list, evenly spaced. Throws InputError unless at least one
/// is left to train on.
std::vector<Photograph> hold_out(std::vector<Photograph>& photographs, std::size_t count);

/// Throws InputError on every rank unless all ranks hold the same photographs. Collective.
void require_same_photographs(const std::vector<Photograph>& photographs);

struct PatchOptions {
  std::int64_t patch = 48;  ///< side of the low-resolution patch, pixels
  std::int64_t scale = 2;
  std::int64_t samples = 0;  ///< samples per epoch; sample i is cut from photograph i mod count
  std::uint64_t seed = 1;
};

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

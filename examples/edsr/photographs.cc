// SPDX-License-Identifier: Apache-2.0
#include "photographs.h"

#include <ronde/torch.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "common/counter_random.h"
#include "common/program.h"
#include "images.h"

namespace edsr {
namespace {

namespace fs = std::filesystem;

bool is_named_like_an_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// Returns the files of all places, sorted, each once, and counts those that are no images.
std::set<fs::path> find_files(const std::vector<fs::path>& places, std::size_t& left_out) try {
  std::set<fs::path> files;
  for (const fs::path& place : places) {
    if (!fs::exists(place)) {
      throw example::InputError("no such file or folder of photographs: " + place.string());
    }
    if (!fs::is_directory(place)) {
      files.insert(place);
      continue;
    }
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(place)) {
      const bool is_file = entry.is_regular_file() && !entry.is_symlink();
      if (is_file && is_named_like_an_image(entry.path())) {
        files.insert(entry.path());
      } else if (!entry.is_directory()) {
        ++left_out;
      }
    }
  }
  return files;
} catch (const fs::filesystem_error& error) {
  throw example::InputError(std::string("photographs cannot be listed: ") + error.what());
}

torch::Tensor cut(const torch::Tensor& image, std::int64_t top, std::int64_t left,
                  std::int64_t side) {
  return image.slice(1, top, top + side).slice(2, left, left + side);
}

/// Applies one of the eight symmetries of a square to [C, H, W]: bit 0 flips left-right, bit 1
/// flips top-bottom, bit 2 transposes (first).
torch::Tensor apply_symmetry(const torch::Tensor& image, std::int64_t symmetry) {
  torch::Tensor result = (symmetry & 4) != 0 ? image.transpose(1, 2) : image;
  if ((symmetry & 2) != 0) result = result.flip(1);
  if ((symmetry & 1) != 0) result = result.flip(2);
  return result;
}

}  // namespace

std::vector<Photograph> load_photographs(const std::vector<fs::path>& places,
                                         const LoadOptions& options, std::size_t& left_out) {
  std::vector<Photograph> photographs;
  for (const fs::path& file : find_files(places, left_out)) {
    const torch::Tensor image = read_image(file);
    if (std::min(image.size(1), image.size(2)) < options.min_side) {
      ++left_out;
      continue;
    }
    const torch::Tensor high = crop_to_multiple(limit_side(image, options.max_side), options.scale);
    const std::int64_t height = high.size(1) / options.scale;
    const std::int64_t width = high.size(2) / options.scale;
    if (std::min(height, width) < options.patch) {
      throw example::InputError(
          "image " + file.string() + ": too small for a patch of " + std::to_string(options.patch) +
          " pixels, as its low resolution is " + std::to_string(width) + "x" +
          std::to_string(height) + "; raise --max-side, lower --patch, or leave the image out");
    }
    photographs.push_back({file.string(), high, bicubic_resize(high, height, width)});
  }
  return photographs;
}

std::vector<Photograph> hold_out(std::vector<Photograph>& photographs, std::size_t count) {
  const std::size_t all = photographs.size();
  if (all <= count) {
    throw example::InputError("found " + std::to_string(all) +
                              " photographs of at least --min-side pixels a side, too few to hold "
                              "out " +
                              std::to_string(count) +
                              " and train on the rest; give more by --data");
  }
  std::vector<Photograph> held_out;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t place = (2 * i + 1) * all / (2 * count) - i;  // i are taken out before it
    held_out.push_back(std::move(photographs[place]));
    photographs.erase(photographs.begin() + static_cast<std::ptrdiff_t>(place));
  }
  return held_out;
}

void require_same_photographs(const std::vector<Photograph>& photographs) {
  torch::OrderedDict<std::string, torch::Tensor> images;
  for (std::size_t i = 0; i < photographs.size(); ++i) {
    const std::string file = fs::path(photographs[i].name).filename().string();
    images.insert("image " + std::to_string(i) + ", " + file, photographs[i].high);
  }
  try {
    ronde::check_replicas(images);  // it compares any tensors by name, shape and values
  } catch (const ronde::UsageError& difference) {
    const std::string text = difference.what();
    const std::string end_of_advice = "=off:";  // on parameters
    const std::size_t place = text.find(end_of_advice);
    throw example::InputError(
        "the photographs of the ranks differ; every rank must find the same in --data and "
        "--validation: " +
        (place == std::string::npos ? text : text.substr(place + end_of_advice.size())));
  }
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

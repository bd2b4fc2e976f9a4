// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/types.h>

namespace edsr {

struct SkippedFile {
  std::filesystem::path path;
  std::string reason;
};

/// The image files found, sorted by path, and the images that were left out.
struct ScanResult {
  std::vector<std::filesystem::path> files;
  std::vector<SkippedFile> skipped;
};

/// Walks each place (a folder, with all its sub-folders, or one image file) for JPEG and PNG files,
/// told by content. Symbolic links and images with a side below `min_side` pixels are skipped with
/// the reason. Throws InputError for a place that does not exist, an unreadable file, and a file
/// that is named like an image and is none.
ScanResult scan_photographs(const std::vector<std::filesystem::path>& places,
                            std::int64_t min_side);

/// The files to train on and those held out, each in order.
struct Split {
  std::vector<std::filesystem::path> training;
  std::vector<std::filesystem::path> held_out;
};

/// Holds out `count` files, evenly spaced over the sorted list. Throws InputError unless at least
/// one is left to train on.
Split split_photographs(const std::vector<std::filesystem::path>& files, std::size_t count);

/// A photograph and its bicubic counterpart, both uint8 [3, H, W]; the high resolution measures
/// exactly `scale` times the low one.
struct Photograph {
  std::string name;
  torch::Tensor high;
  torch::Tensor low;
};

/// Decodes, shrinks to `max_side` (0: as it is) and makes the low-resolution counterpart. Throws
/// InputError for a corrupt image, or one with a side below `min_side` pixels after shrinking.
Photograph load_photograph(const std::filesystem::path& file, std::int64_t max_side,
                           std::int64_t scale, std::int64_t min_side);

/// Loads them all, in order, with `threads` threads.
std::vector<Photograph> load_photographs(const std::vector<std::filesystem::path>& files,
                                         std::int64_t max_side, std::int64_t scale,
                                         std::int64_t min_side, std::size_t threads);

/// A number over names, sizes and pixels: equal on two ranks that hold the same photographs.
std::uint64_t fingerprint(const std::vector<Photograph>& photographs);

}  // namespace edsr

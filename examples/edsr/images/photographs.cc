// SPDX-License-Identifier: Apache-2.0
#include "images/photographs.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "common/checksum.h"
#include "common/errors.h"
#include "images/image_io.h"
#include "images/resample.h"

namespace edsr {
namespace {

namespace fs = std::filesystem;

bool named_like_an_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

std::string dimensions(std::int64_t width, std::int64_t height) {
  return std::to_string(width) + "x" + std::to_string(height);
}

/// Adds a regular file to the files found, or to those skipped.
void consider(const fs::path& path, std::int64_t min_side, ScanResult& result) {
  if (!image_format(path) && !named_like_an_image(path)) return;
  const ImageSize size = image_size(path);
  if (std::min(size.width, size.height) < min_side) {
    result.skipped.push_back({path, dimensions(size.width, size.height) + " pixels, a side below " +
                                        std::to_string(min_side)});
  } else {
    result.files.push_back(path);
  }
}

void scan_folder(const fs::path& folder, std::int64_t min_side, ScanResult& result) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink()) {
      if (named_like_an_image(entry.path())) {
        result.skipped.push_back({entry.path(), "a symbolic link"});
      }
    } else if (entry.is_regular_file()) {
      consider(entry.path(), min_side, result);
    }
  }
}

void scan_place(const fs::path& place, std::int64_t min_side, ScanResult& result) {
  if (fs::is_directory(place)) {
    scan_folder(place, min_side, result);
  } else if (fs::exists(place)) {
    const std::size_t found = result.files.size() + result.skipped.size();
    consider(place, min_side, result);
    if (result.files.size() + result.skipped.size() == found) {
      throw example::InputError("image " + place.string() + ": neither a JPEG nor a PNG file");
    }
  } else {
    throw example::InputError("no such file or folder of photographs: " + place.string());
  }
}

}  // namespace

ScanResult scan_photographs(const std::vector<fs::path>& places, std::int64_t min_side) {
  ScanResult result;
  for (const fs::path& place : places) {
    try {
      scan_place(place, min_side, result);
    } catch (const fs::filesystem_error& error) {
      throw example::InputError("photographs in " + place.string() +
                                " cannot be listed: " + error.what());
    }
  }
  std::sort(result.files.begin(), result.files.end());
  result.files.erase(std::unique(result.files.begin(), result.files.end()), result.files.end());
  return result;
}

Split split_photographs(const std::vector<fs::path>& files, std::size_t count) {
  if (files.size() <= count) {
    throw example::InputError("found " + std::to_string(files.size()) +
                              " photographs, too few to hold out " + std::to_string(count) +
                              " and train on the rest; give more by --data");
  }
  Split split;
  std::set<std::size_t> chosen;
  for (std::size_t i = 0; i < count; ++i) chosen.insert((2 * i + 1) * files.size() / (2 * count));
  for (std::size_t i = 0; i < files.size(); ++i) {
    (chosen.count(i) != 0 ? split.held_out : split.training).push_back(files[i]);
  }
  return split;
}

Photograph load_photograph(const fs::path& file, std::int64_t max_side, std::int64_t scale,
                           std::int64_t min_side) {
  Photograph photograph;
  photograph.name = file.string();
  photograph.high = crop_to_multiple(limit_side(read_image(file), max_side), scale);
  const std::int64_t height = photograph.high.size(1);
  const std::int64_t width = photograph.high.size(2);
  if (std::min(height, width) < min_side) {
    throw example::InputError("image " + file.string() + ": " + dimensions(width, height) +
                              " pixels after scaling, but a patch needs " +
                              std::to_string(min_side) +
                              "; raise --max-side, lower --patch, or leave the image out");
  }
  photograph.low = bicubic_resize(photograph.high, height / scale, width / scale);
  return photograph;
}

std::vector<Photograph> load_photographs(const std::vector<fs::path>& files, std::int64_t max_side,
                                         std::int64_t scale, std::int64_t min_side,
                                         std::size_t threads) {
  std::vector<Photograph> photographs(files.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto work = [&] {
    for (std::size_t i = next++; i < files.size(); i = next++) {
      try {
        photographs[i] = load_photograph(files[i], max_side, scale, min_side);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!first_error) first_error = std::current_exception();
        next = files.size();
      }
    }
  };
  std::vector<std::thread> helpers;
  for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (first_error) std::rethrow_exception(first_error);
  return photographs;
}

std::uint64_t fingerprint(const std::vector<Photograph>& photographs) {
  example::Checksum checksum;
  for (const Photograph& photograph : photographs) {
    checksum.add(std::filesystem::path(photograph.name).filename().string());
    checksum.add(photograph.high);
    checksum.add(photograph.low);
  }
  return checksum.value();
}

}  // namespace edsr

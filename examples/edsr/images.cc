// SPDX-License-Identifier: Apache-2.0
#include "images.h"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include <ATen/Functions.h>

#include "common/program.h"

namespace edsr {
namespace {

constexpr std::int64_t kChannels = 3;
// Beyond this a header is taken for a corrupt one rather than for an order of 3 GB.
constexpr std::int64_t kMaxPixels = std::int64_t{1} << 30;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& reason) {
  throw example::InputError("image " + path.string() + ": " + reason);
}

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.empty()) fail(path, "the file is empty");
  return bytes;
}

/// Returns memory for interleaved RGB, [H, W, 3].
torch::Tensor make_pixels(const std::filesystem::path& path, const std::string& format,
                          std::int64_t height, std::int64_t width) {
  if (width < 1 || height < 1 || width > kMaxPixels / height) {
    fail(path, "corrupt or truncated " + format + ": its header gives a size of " +
                   std::to_string(width) + "x" + std::to_string(height) + " pixels");
  }
  return torch::empty({height, width, kChannels}, torch::kUInt8);
}

torch::Tensor decode_jpeg(const std::filesystem::path& path, const std::string& bytes) {
  const std::unique_ptr<void, decltype(&tjDestroy)> decoder(tjInitDecompress(), tjDestroy);
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colorspace = 0;
  const auto check = [&](int status) {
    if (status == 0) return;
    fail(path, std::string("corrupt or truncated JPEG: ") + tjGetErrorStr2(decoder.get()));
  };
  check(tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &subsampling,
                            &colorspace));
  torch::Tensor pixels = make_pixels(path, "JPEG", height, width);
  // The accurate DCT, so that every machine decodes to the same bytes.
  check(tjDecompress2(decoder.get(), data, bytes.size(), pixels.data_ptr<std::uint8_t>(), width, 0,
                      height, TJPF_RGB, TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING));
  return pixels;
}

torch::Tensor decode_png(const std::filesystem::path& path, const std::string& bytes) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, decltype(&png_image_free)> owner(&header, png_image_free);
  const auto check = [&](int is_good) {
    if (is_good == 0) fail(path, std::string("corrupt or truncated PNG: ") + header.message);
  };
  check(png_image_begin_read_from_memory(&header, bytes.data(), bytes.size()));
  header.format = PNG_FORMAT_RGB;
  torch::Tensor pixels = make_pixels(path, "PNG", header.height, header.width);
  const png_color black{0, 0, 0};
  check(png_image_finish_read(&header, &black, pixels.data_ptr<std::uint8_t>(), 0, nullptr));
  return pixels;
}

}  // namespace

torch::Tensor read_image(const std::filesystem::path& path) {
  const std::string bytes = read_bytes(path);
  torch::Tensor pixels;
  if (bytes.starts_with("\xFF\xD8\xFF")) {
    pixels = decode_jpeg(path, bytes);
  } else if (bytes.starts_with("\x89PNG\r\n\x1A\n")) {
    pixels = decode_png(path, bytes);
  } else {
    fail(path, "neither a JPEG nor a PNG file, by its first bytes");
  }
  return pixels.permute({2, 0, 1}).contiguous();
}

void write_png(const std::filesystem::path& path, const torch::Tensor& image) {
  const torch::Tensor pixels = image.permute({1, 2, 0}).contiguous();
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(pixels.size(1));
  header.height = static_cast<png_uint_32>(pixels.size(0));
  header.format = PNG_FORMAT_RGB;
  const std::unique_ptr<png_image, decltype(&png_image_free)> owner(&header, png_image_free);
  if (png_image_write_to_file(&header, path.c_str(), 0, pixels.data_ptr<std::uint8_t>(), 0,
                              nullptr) == 0) {
    fail(path, std::string("cannot be written: ") + header.message);
  }
}

torch::Tensor bicubic_resize(const torch::Tensor& image, std::int64_t height, std::int64_t width) {
  const torch::Tensor resized =
      at::_upsample_bicubic2d_aa(image.unsqueeze(0).to(torch::kFloat32), {height, width},
                                 /*align_corners=*/false);
  return resized.squeeze(0).round().clamp(0, 255).to(torch::kUInt8);
}

torch::Tensor limit_side(const torch::Tensor& image, std::int64_t max_side) {
  const std::int64_t height = image.size(1);
  const std::int64_t width = image.size(2);
  const std::int64_t longer = std::max(height, width);
  if (max_side == 0 || longer <= max_side) return image;
  const auto shrunk = [&](std::int64_t side) {
    const double exact = static_cast<double>(side * max_side) / static_cast<double>(longer);
    return std::max<std::int64_t>(1, std::llround(exact));
  };
  return bicubic_resize(image, shrunk(height), shrunk(width));
}

torch::Tensor crop_to_multiple(const torch::Tensor& image, std::int64_t scale) {
  const std::int64_t height = image.size(1) / scale * scale;
  const std::int64_t width = image.size(2) / scale * scale;
  return image.slice(1, 0, height).slice(2, 0, width).contiguous();
}

torch::Tensor to_bytes(const torch::Tensor& image) {
  return image.mul(255).round().clamp(0, 255).to(torch::kUInt8);
}

torch::Tensor to_unit(const torch::Tensor& image) {
  return image.to(torch::kFloat32).div(255);
}

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
#include "images/image_io.h"

#include <png.h>
#include <turbojpeg.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "common/data/png.h"
#include "common/errors.h"

namespace edsr {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr std::int64_t kChannels = 3;
constexpr std::size_t kSignatureBytes = 8;
// Beyond this a header is taken for a corrupt one rather than for an order of 3 GB.
constexpr std::int64_t kMaxPixels = std::int64_t{1} << 30;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct TurboJpegCloser {
  void operator()(void* handle) const { tjDestroy(handle); }
};
using TurboJpeg = std::unique_ptr<void, TurboJpegCloser>;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& reason) {
  throw example::InputError("image " + path.string() + ": " + reason);
}

/// The first `limit` bytes of the file, or all of it.
Bytes read_bytes(const std::filesystem::path& path, std::size_t limit) {
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  Bytes bytes;
  std::array<unsigned char, 1 << 16> block;
  while (bytes.size() < limit) {
    const std::size_t want = std::min(block.size(), limit - bytes.size());
    const std::size_t got = std::fread(block.data(), 1, want, file.get());
    bytes.insert(bytes.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(got));
    if (got < want) break;
  }
  if (std::ferror(file.get()) != 0) {
    fail(path, std::string("cannot be read: ") + std::strerror(errno));
  }
  return bytes;
}

std::optional<ImageFormat> format_of(const Bytes& bytes) {
  if (bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF) {
    return ImageFormat::Jpeg;
  }
  if (bytes.size() >= kSignatureBytes && png_sig_cmp(bytes.data(), 0, kSignatureBytes) == 0) {
    return ImageFormat::Png;
  }
  return std::nullopt;
}

ImageFormat require_format(const std::filesystem::path& path, const Bytes& bytes) {
  if (bytes.empty()) fail(path, "the file is empty");
  const std::optional<ImageFormat> format = format_of(bytes);
  if (!format) fail(path, "neither a JPEG nor a PNG file (its first bytes say so)");
  return *format;
}

void check_size(const std::filesystem::path& path, const ImageSize& size, const char* format) {
  if (size.width < 1 || size.height < 1 || size.width > kMaxPixels / size.height) {
    fail(path, std::string("corrupt or truncated ") + format + ": its header gives a size of " +
                   std::to_string(size.width) + "x" + std::to_string(size.height) + " pixels");
  }
}

TurboJpeg open_jpeg(const std::filesystem::path& path, const Bytes& bytes, ImageSize& size) {
  TurboJpeg handle(tjInitDecompress());
  if (!handle) fail(path, std::string("no JPEG decoder: ") + tjGetErrorStr2(nullptr));
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colorspace = 0;
  if (tjDecompressHeader3(handle.get(), bytes.data(), bytes.size(), &width, &height, &subsampling,
                          &colorspace) != 0) {
    fail(path, std::string("corrupt or truncated JPEG: ") + tjGetErrorStr2(handle.get()));
  }
  size = {width, height};
  check_size(path, size, "JPEG");
  return handle;
}

/// Returns interleaved RGB, [H, W, 3].
torch::Tensor decode_jpeg(const std::filesystem::path& path, const Bytes& bytes) {
  ImageSize size;
  const TurboJpeg handle = open_jpeg(path, bytes, size);
  torch::Tensor pixels = torch::empty({size.height, size.width, kChannels}, torch::kUInt8);
  // The accurate DCT, so that every machine decodes to the same bytes.
  if (tjDecompress2(handle.get(), bytes.data(), bytes.size(), pixels.data_ptr<std::uint8_t>(),
                    static_cast<int>(size.width), 0, static_cast<int>(size.height), TJPF_RGB,
                    TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING) != 0) {
    fail(path, std::string("corrupt or truncated JPEG: ") + tjGetErrorStr2(handle.get()));
  }
  return pixels;
}

/// libpng's simplified reader; frees what it holds whatever happens.
class PngReader {
 public:
  PngReader(const std::filesystem::path& path, const Bytes& bytes) : path_(path) {
    image_.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_memory(&image_, bytes.data(), bytes.size()) == 0) corrupt();
    check_size(path_, size(), "PNG");
  }
  ~PngReader() { png_image_free(&image_); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  ImageSize size() const { return {image_.width, image_.height}; }

  /// Returns interleaved RGB, [H, W, 3].
  torch::Tensor decode() {
    image_.format = PNG_FORMAT_RGB;
    torch::Tensor pixels = torch::empty({size().height, size().width, kChannels}, torch::kUInt8);
    const png_color black{0, 0, 0};
    if (png_image_finish_read(&image_, &black, pixels.data_ptr<std::uint8_t>(), 0, nullptr) == 0) {
      corrupt();
    }
    return pixels;
  }

 private:
  [[noreturn]] void corrupt() {
    const std::string reason = image_.message;
    png_image_free(&image_);
    fail(path_, "corrupt or truncated PNG: " + reason);
  }

  std::filesystem::path path_;
  png_image image_{};
};

}  // namespace

std::optional<ImageFormat> image_format(const std::filesystem::path& path) {
  return format_of(read_bytes(path, kSignatureBytes));
}

ImageSize image_size(const std::filesystem::path& path) {
  const Bytes bytes = read_bytes(path, SIZE_MAX);
  if (require_format(path, bytes) == ImageFormat::Png) return PngReader(path, bytes).size();
  ImageSize size;
  open_jpeg(path, bytes, size);
  return size;
}

torch::Tensor read_image(const std::filesystem::path& path) {
  const Bytes bytes = read_bytes(path, SIZE_MAX);
  const torch::Tensor pixels = require_format(path, bytes) == ImageFormat::Png
                                   ? PngReader(path, bytes).decode()
                                   : decode_jpeg(path, bytes);
  return pixels.permute({2, 0, 1}).contiguous();
}

void write_png(const std::filesystem::path& path, const torch::Tensor& image) {
  TORCH_CHECK(
      image.dim() == 3 && image.size(0) == kChannels && image.scalar_type() == torch::kUInt8,
      "write_png takes uint8 [3, H, W], not ", image.scalar_type(), " ", image.sizes());
  const torch::Tensor pixels = image.permute({1, 2, 0}).contiguous();
  example::write_png(path, pixels.size(1), pixels.size(0), pixels.data_ptr<std::uint8_t>());
}

}  // namespace edsr

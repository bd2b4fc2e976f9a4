// SPDX-License-Identifier: Apache-2.0
#include "common/data/png.h"

#include <png.h>

#include <string>

#include "common/errors.h"

namespace example {

void write_png(const std::filesystem::path& path, std::int64_t width, std::int64_t height,
               const std::uint8_t* rgb) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(width);
  header.height = static_cast<png_uint_32>(height);
  header.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&header, path.c_str(), 0, rgb, 0, nullptr) == 0) {
    const std::string reason = header.message;
    png_image_free(&header);
    throw InputError("image " + path.string() + ": cannot be written: " + reason);
  }
}

}  // namespace example

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace example {

/// Writes `width` x `height` pixels as PNG: rows from the top, each pixel red, green and blue.
/// Throws InputError naming the file when it cannot be written.
void write_png(const std::filesystem::path& path, std::int64_t width, std::int64_t height,
               const std::uint8_t* rgb);

}  // namespace example

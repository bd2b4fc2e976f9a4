// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <torch/torch.h>

#include "tests/examples/input_error.h"
#include "tests/support/processes/temporary_folder.h"

namespace edsr::testing {

using ronde::test::input_error;
using ronde::test::read_text;
using ronde::test::TemporaryFolder;
using ronde::test::write_bytes;

/// An image with smooth parts, edges and texture, different for each `variant`: uint8 [3, H, W].
torch::Tensor make_image(std::int64_t variant, std::int64_t height, std::int64_t width);

/// make_image as `count` PNG files a.png, b.png, ... in a folder, which is created.
void make_photographs(const std::filesystem::path& folder, std::int64_t count,
                      std::int64_t height = 96, std::int64_t width = 112);

void write_jpeg(const std::filesystem::path& path, const torch::Tensor& image, bool grey = false);

/// Leaves so many percent of a file.
void cut_file(const std::filesystem::path& path, std::size_t percent);

}  // namespace edsr::testing

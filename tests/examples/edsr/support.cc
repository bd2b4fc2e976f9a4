// SPDX-License-Identifier: Apache-2.0
#include "tests/examples/edsr/support.h"

#include <turbojpeg.h>

#include <memory>
#include <stdexcept>

#include "images.h"

namespace edsr::testing {

namespace fs = std::filesystem;

torch::Tensor make_image(std::int64_t variant, std::int64_t height, std::int64_t width) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(variant) + 17);
  const torch::Tensor y = torch::linspace(0, 1, height).view({1, height, 1});
  const torch::Tensor x = torch::linspace(0, 1, width).view({1, 1, width});
  const torch::Tensor color = torch::rand({3, 1, 1}, generator);
  const double turn = 0.3 + 0.9 * static_cast<double>(variant % 5);
  const torch::Tensor waves = torch::sin(20 * (x * turn + y) + 6 * color) * 0.2;
  const torch::Tensor edge = (x + turn * y > 0.8).to(torch::kFloat32) * 0.3;
  const torch::Tensor noise = torch::rand({3, height, width}, generator) * 0.05;
  return to_bytes((0.4 * color + 0.2 + waves + edge + noise).clamp(0, 1));
}

void make_photographs(const fs::path& folder, std::int64_t count, std::int64_t height,
                      std::int64_t width) {
  fs::create_directories(folder);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    write_png(folder / (name + ".png"), make_image(i, height, width));
  }
}

void write_jpeg(const fs::path& path, const torch::Tensor& image, bool grey) {
  const torch::Tensor pixels = image.permute({1, 2, 0}).contiguous();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  void* handle = tjInitCompress();
  const int result =
      tjCompress2(handle, pixels.data_ptr<std::uint8_t>(), static_cast<int>(pixels.size(1)), 0,
                  static_cast<int>(pixels.size(0)), TJPF_RGB, &bytes, &size,
                  grey ? TJSAMP_GRAY : TJSAMP_444, 95, 0);
  tjDestroy(handle);
  const std::unique_ptr<unsigned char, decltype(&tjFree)> owner(bytes, tjFree);
  if (result != 0) throw std::runtime_error("JPEG compression failed");
  write_bytes(path, std::string(bytes, bytes + size));
}

void cut_file(const fs::path& path, std::size_t percent) {
  const std::string whole = read_text(path);
  write_bytes(path, whole.substr(0, whole.size() * percent / 100));
}

}  // namespace edsr::testing

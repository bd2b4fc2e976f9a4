// SPDX-License-Identifier: Apache-2.0
#include "images.h"

#include <catch2/catch.hpp>
#include <map>

#include "tests/examples/edsr/support.h"

namespace edsr {
namespace {

using Catch::Contains;
using testing::input_error;
using testing::make_image;
using testing::TemporaryFolder;

std::string read_error(const std::filesystem::path& path) {
  return input_error([&] { read_image(path); });
}

}  // namespace

TEST_CASE("a PNG comes back bit for bit, a JPEG closely, a grey one in three equal channels") {
  const TemporaryFolder folder;
  write_png(folder / "named.jpg", make_image(0, 23, 37));  // the content counts, not the name
  CHECK(torch::equal(read_image(folder / "named.jpg"), make_image(0, 23, 37)));

  const torch::Tensor image = torch::full({3, 24, 40}, 60, torch::kUInt8);
  image[0].fill_(200);
  testing::write_jpeg(folder / "x.jpg", image);
  const torch::Tensor decoded = read_image(folder / "x.jpg");
  REQUIRE(decoded.sizes() == image.sizes());
  CHECK(torch::allclose(decoded.to(torch::kFloat), image.to(torch::kFloat), 0, 3));

  testing::write_jpeg(folder / "grey.jpg", make_image(0, 24, 40), /*grey=*/true);
  const torch::Tensor grey = read_image(folder / "grey.jpg");
  REQUIRE(grey.sizes() == image.sizes());
  CHECK(torch::equal(grey[0], grey[1]));
  CHECK(torch::equal(grey[0], grey[2]));
}

TEST_CASE("what is no whole image, or cannot be written, is refused with its reason") {
  const TemporaryFolder folder;
  for (const std::size_t percent : {1, 10, 50, 90, 98}) {
    CAPTURE(percent);
    testing::write_jpeg(folder / "x.jpg", make_image(0, 64, 64));
    write_png(folder / "x.png", make_image(0, 64, 64));
    for (const auto& [name, format] :
         std::map<std::string, std::string>{{"x.jpg", "JPEG"}, {"x.png", "PNG"}}) {
      testing::cut_file(folder / name, percent);
      CHECK_THAT(read_error(folder / name), Contains((folder / name).string()) && Contains(format));
    }
  }
  write_png(folder / "flipped.png", make_image(0, 64, 64));
  std::string bytes = testing::read_text(folder / "flipped.png");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
  testing::write_bytes(folder / "flipped.png", bytes);
  testing::write_bytes(folder / "empty.png", "");
  testing::write_bytes(folder / "text.png", "hello");
  for (const auto& [name, reason] :
       std::map<std::string, std::string>{{"flipped.png", "corrupt"},
                                          {"none.png", "No such file"},
                                          {"empty.png", "empty"},
                                          {"text.png", "neither a JPEG nor a PNG"}}) {
    CHECK_THAT(read_error(folder / name), Contains(reason));
  }
  CHECK_THAT(input_error([&] { write_png(folder / "empty.png" / "x.png", make_image(0, 8, 8)); }),
             Contains("x.png") && Contains("cannot be written"));
}

}  // namespace edsr

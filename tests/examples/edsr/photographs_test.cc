// SPDX-License-Identifier: Apache-2.0
#include "photographs.h"

#include <catch2/catch.hpp>

#include "images.h"
#include "tests/examples/edsr/support.h"

namespace edsr {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using testing::input_error;
using testing::make_image;
using testing::TemporaryFolder;

constexpr LoadOptions kLoad{.min_side = 32};

std::vector<std::string> names(const std::vector<Photograph>& photographs) {
  std::vector<std::string> names;
  for (const Photograph& photograph : photographs) names.push_back(photograph.name);
  return names;
}

}  // namespace

TEST_CASE("photographs are found in sub-folders, once, sorted, without links and thumbnails") {
  const TemporaryFolder folder;
  const fs::path deep = folder.path() / "b" / "deep" / "x.jpeg";
  fs::create_directories(deep.parent_path());
  write_png(folder / "z.png", make_image(0, 40, 40));
  testing::write_jpeg(deep, make_image(1, 40, 40));
  testing::write_jpeg(folder / "a.JPG", make_image(2, 40, 40));
  testing::write_bytes(folder / "readme.txt", "words");
  write_png(folder / "small.png", make_image(1, 40, 31));
  fs::create_symlink(folder / "z.png", folder / "link.png");
  fs::create_symlink(folder / "gone.png", folder / "dangling.png");
  std::size_t left_out = 0;
  CHECK(names(load_photographs({folder.path(), deep}, kLoad, left_out)) ==
        std::vector<std::string>{folder / "a.JPG", deep, folder / "z.png"});
  CHECK(left_out == 4);  // the words, two links, and the small one

  CHECK_THAT(input_error([&] { load_photographs({folder / "none"}, kLoad, left_out); }),
             Contains("no such file or folder") && Contains("none"));
  CHECK_THAT(input_error([&] { load_photographs({folder / "readme.txt"}, kLoad, left_out); }),
             Contains("readme.txt") && Contains("neither a JPEG nor a PNG"));
}

TEST_CASE("evenly spaced photographs are held out, as many as asked, and the order is kept") {
  const auto numbered = [](std::size_t count) {
    std::vector<Photograph> photographs(count);
    for (std::size_t i = 0; i < count; ++i) photographs[i].name = std::to_string(i);
    return photographs;
  };
  std::vector<Photograph> training = numbered(10);
  CHECK(names(hold_out(training, 2)) == std::vector<std::string>{"2", "7"});
  CHECK(names(training) == std::vector<std::string>{"0", "1", "3", "4", "5", "6", "8", "9"});
  for (std::size_t all = 2; all < 20; ++all) {
    for (std::size_t count = 1; count < all; ++count) {
      training = numbered(all);
      REQUIRE(hold_out(training, count).size() == count);
      REQUIRE(training.size() == all - count);
    }
  }
  training = numbered(4);
  CHECK_THAT(input_error([&] { hold_out(training, 4); }), Contains("too few"));
}

TEST_CASE("a photograph measures exactly its scale times its low-resolution counterpart") {
  const TemporaryFolder folder;
  const auto scale = GENERATE(as<std::int64_t>{}, 2, 3, 4);
  std::size_t left_out = 0;
  write_png(folder / "x.png", make_image(0, 67, 95));
  const auto [name, high, low] =
      load_photographs({folder / "x.png"}, {.scale = scale}, left_out).at(0);
  CHECK(low.sizes() == torch::IntArrayRef({3, 67 / scale, 95 / scale}));
  CHECK(torch::equal(high, crop_to_multiple(make_image(0, 67, 95), scale)));
  const LoadOptions shrunk = {.max_side = 40, .scale = 2, .patch = 15};
  CHECK_THAT(input_error([&] { load_photographs({folder / "x.png"}, shrunk, left_out); }),
             Contains("x.png") && Contains("20x14"));
}

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
#include "photographs.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "image_io.h"
#include "resample.h"
#include "support.h"

namespace edsr {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using testing::input_error;
using testing::make_image;
using testing::TemporaryFolder;

constexpr std::int64_t kMinSide = 32;

std::vector<fs::path> numbered(std::size_t count) {
  std::vector<fs::path> files;
  for (std::size_t i = 0; i < count; ++i) files.emplace_back(std::to_string(i));
  return files;
}

}  // namespace

TEST_CASE("scanning finds images in sub-folders, sorted, whatever their names") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "b" / "deep");
  write_png(folder / "z.png", make_image(0, 40, 40));
  write_png(folder.path() / "b" / "deep" / "unnamed", make_image(1, 40, 40));
  testing::write_jpeg(folder / "a.JPG", make_image(2, 40, 40));
  testing::write_bytes(folder / "readme.txt", "words");
  const ScanResult result = scan_photographs({folder.path()}, kMinSide);
  const std::vector<fs::path> expected{folder / "a.JPG", folder.path() / "b" / "deep" / "unnamed",
                                       folder / "z.png"};
  CHECK(result.files == expected);
  CHECK(result.skipped.empty());
}

TEST_CASE("scanning skips links and small images and says why") {
  const TemporaryFolder folder;
  write_png(folder / "real.png", make_image(0, 40, 40));
  write_png(folder / "small.png", make_image(1, 40, 31));
  fs::create_symlink(folder / "real.png", folder / "link.png");
  fs::create_symlink(folder / "gone.png", folder / "dangling.png");
  const ScanResult result = scan_photographs({folder.path()}, kMinSide);
  CHECK(result.files == std::vector<fs::path>{folder / "real.png"});
  REQUIRE(result.skipped.size() == 3);
  for (const SkippedFile& skipped : result.skipped) {
    const bool small = skipped.path == folder / "small.png";
    CHECK(skipped.reason == (small ? "31x40 pixels, a side below 32" : "a symbolic link"));
  }
}

TEST_CASE("a place named twice counts once, and a file may be named itself") {
  const TemporaryFolder folder;
  testing::make_photographs(folder.path(), 2);
  const auto result = scan_photographs({folder.path(), folder / "a.png", folder.path()}, kMinSide);
  CHECK(result.files == std::vector<fs::path>{folder / "a.png", folder / "b.png"});
}

TEST_CASE("a missing place and a file that only looks like an image are refused") {
  const TemporaryFolder folder;
  CHECK_THAT(input_error([&] { scan_photographs({folder / "none"}, kMinSide); }),
             Contains("no such file or folder") && Contains("none"));
  testing::write_bytes(folder / "fake.jpg", "words");
  CHECK_THAT(input_error([&] { scan_photographs({folder.path()}, kMinSide); }),
             Contains("fake.jpg") && Contains("neither a JPEG nor a PNG"));
  testing::write_bytes(folder / "notes.txt", "words");
  CHECK_THAT(input_error([&] { scan_photographs({folder / "notes.txt"}, kMinSide); }),
             Contains("notes.txt"));
}

TEST_CASE("the split holds out evenly spaced files and keeps the order") {
  const Split split = split_photographs(numbered(10), 2);
  CHECK(split.held_out == std::vector<fs::path>{"2", "7"});
  CHECK(split.training == std::vector<fs::path>{"0", "1", "3", "4", "5", "6", "8", "9"});
}

TEST_CASE("the split holds out as many as asked and leaves one to train on") {
  for (std::size_t files = 2; files < 40; ++files) {
    for (std::size_t count = 1; count < files; ++count) {
      const Split split = split_photographs(numbered(files), count);
      REQUIRE(split.held_out.size() == count);
      REQUIRE(split.training.size() == files - count);
    }
  }
  CHECK_THAT(input_error([] { split_photographs(numbered(4), 4); }), Contains("too few"));
}

TEST_CASE("a photograph measures exactly its scale times its low-resolution counterpart") {
  const TemporaryFolder folder;
  const auto scale = GENERATE(as<std::int64_t>{}, 2, 3, 4);
  write_png(folder / "x.png", make_image(0, 67, 95));
  const Photograph photograph = load_photograph(folder / "x.png", 0, scale, kMinSide);
  CHECK(photograph.high.size(1) == 67 / scale * scale);
  CHECK(photograph.high.size(2) == 95 / scale * scale);
  CHECK(photograph.low.size(1) * scale == photograph.high.size(1));
  CHECK(photograph.low.size(2) * scale == photograph.high.size(2));
  CHECK(torch::equal(photograph.high, crop_to_multiple(make_image(0, 67, 95), scale)));
}

TEST_CASE("a photograph too small for a patch is refused by name") {
  const TemporaryFolder folder;
  write_png(folder / "x.png", make_image(0, 100, 200));
  CHECK_THAT(input_error([&] { load_photograph(folder / "x.png", 50, 2, kMinSide); }),
             Contains("x.png") && Contains("50x24"));
}

TEST_CASE("many threads load the same photographs in the same order as one") {
  const TemporaryFolder folder;
  testing::make_photographs(folder.path(), 7);
  const auto files = scan_photographs({folder.path()}, kMinSide).files;
  const auto one = load_photographs(files, 64, 2, kMinSide, 1);
  const auto many = load_photographs(files, 64, 2, kMinSide, 4);
  REQUIRE(one.size() == 7);
  CHECK(fingerprint(one) == fingerprint(many));
}

TEST_CASE("an image among many that is corrupt, or gone since scanning, is named") {
  const TemporaryFolder folder;
  testing::make_photographs(folder.path(), 5);
  const auto files = scan_photographs({folder.path()}, kMinSide).files;
  const auto threads = GENERATE(as<std::size_t>{}, 1, 3);
  const auto error = [&] {
    return input_error([&] { load_photographs(files, 0, 2, kMinSide, threads); });
  };
  testing::cut_file(folder / "d.png", 50);
  CHECK_THAT(error(), Contains("d.png") && Contains("corrupt or truncated PNG"));
  fs::remove(folder / "d.png");
  CHECK_THAT(error(), Contains("d.png") && Contains("No such file"));
}

TEST_CASE("the fingerprint tells one changed pixel, a changed name and a changed order") {
  const TemporaryFolder folder;
  testing::make_photographs(folder.path(), 3);
  const auto files = scan_photographs({folder.path()}, kMinSide).files;
  const auto photographs = load_photographs(files, 0, 2, kMinSide, 1);
  const auto changed = [&](auto change) {
    auto copy = photographs;
    for (Photograph& photograph : copy) photograph.high = photograph.high.clone();
    change(copy);
    return fingerprint(copy) != fingerprint(photographs);
  };
  CHECK_FALSE(changed([](auto&) {}));
  CHECK(changed([](auto& copy) { copy[1].high[2][95][111] += 128; }));
  CHECK(changed([](auto& copy) { copy[1].name = "other.png"; }));
  CHECK(changed([](auto& copy) { std::swap(copy[0], copy[1]); }));
}

}  // namespace edsr

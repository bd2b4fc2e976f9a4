// SPDX-License-Identifier: Apache-2.0
#include "images/photographs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "images/image_io.h"
#include "images/resample.h"
#include "tests/examples/edsr/support.h"

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

TEST_CASE("scanning finds images in sub-folders, once, sorted, and says what it skips") {
  const TemporaryFolder folder;
  const fs::path unnamed = folder.path() / "b" / "deep" / "unnamed";
  fs::create_directories(unnamed.parent_path());
  write_png(folder / "z.png", make_image(0, 40, 40));
  write_png(unnamed, make_image(1, 40, 40));
  testing::write_jpeg(folder / "a.JPG", make_image(2, 40, 40));
  testing::write_bytes(folder / "readme.txt", "words");
  write_png(folder / "small.png", make_image(1, 40, 31));
  fs::create_symlink(folder / "z.png", folder / "link.png");
  fs::create_symlink(folder / "gone.png", folder / "dangling.png");
  const ScanResult result = scan_photographs({folder.path(), unnamed, folder.path()}, kMinSide);
  CHECK(result.files == std::vector<fs::path>{folder / "a.JPG", unnamed, folder / "z.png"});
  std::map<fs::path, std::string> skipped;
  for (const SkippedFile& file : result.skipped) skipped[file.path] = file.reason;
  CHECK(skipped ==
        std::map<fs::path, std::string>{{folder / "dangling.png", "a symbolic link"},
                                        {folder / "link.png", "a symbolic link"},
                                        {folder / "small.png", "31x40 pixels, a side below 32"}});
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

TEST_CASE("the split holds out evenly spaced files, as many as asked, and keeps the order") {
  const Split split = split_photographs(numbered(10), 2);
  CHECK(split.held_out == std::vector<fs::path>{"2", "7"});
  CHECK(split.training == std::vector<fs::path>{"0", "1", "3", "4", "5", "6", "8", "9"});
  for (std::size_t files = 2; files < 40; ++files) {
    for (std::size_t count = 1; count < files; ++count) {
      const Split each = split_photographs(numbered(files), count);
      REQUIRE(each.held_out.size() == count);
      REQUIRE(each.training.size() == files - count);
    }
  }
  CHECK_THAT(input_error([] { split_photographs(numbered(4), 4); }), Contains("too few"));
}

TEST_CASE("a photograph measures exactly its scale times its low-resolution counterpart") {
  const TemporaryFolder folder;
  const auto scale = GENERATE(as<std::int64_t>{}, 2, 3, 4);
  write_png(folder / "x.png", make_image(0, 67, 95));
  const Photograph photograph = load_photograph(folder / "x.png", 0, scale, kMinSide);
  CHECK(photograph.low.sizes() == torch::IntArrayRef({3, 67 / scale, 95 / scale}));
  CHECK(torch::equal(photograph.high, crop_to_multiple(make_image(0, 67, 95), scale)));
  CHECK_THAT(input_error([&] { load_photograph(folder / "x.png", 40, 2, kMinSide); }),
             Contains("x.png") && Contains("40x28"));
}

TEST_CASE("many threads load the same photographs as one, and name one that is corrupt or gone") {
  const TemporaryFolder folder;
  testing::make_photographs(folder.path(), 7);
  const auto files = scan_photographs({folder.path()}, kMinSide).files;
  const auto load = [&](std::size_t threads) {
    return load_photographs(files, 64, 2, kMinSide, threads);
  };
  REQUIRE(load(1).size() == 7);
  CHECK(fingerprint(load(1)) == fingerprint(load(4)));
  testing::cut_file(folder / "d.png", 50);
  for (const std::string reason : {"corrupt or truncated PNG", "No such file"}) {
    for (const std::size_t threads : {1, 3}) {
      CHECK_THAT(input_error([&] { load(threads); }), Contains("d.png") && Contains(reason));
    }
    fs::remove(folder / "d.png");
  }
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

// SPDX-License-Identifier: Apache-2.0
#include "common/data/files.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <iterator>

#include "tests/examples/edsr/support.h"

namespace edsr {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using example::AtomicFile;
using example::prepare_folder;
using example::write_text;
using testing::input_error;
using testing::TemporaryFolder;

std::ptrdiff_t entries(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

/// A disk that is full after so many bytes, as far as this process can tell.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

}  // namespace

TEST_CASE(
    "a file appears when it is committed; given up or failed half way it leaves the old one") {
  const TemporaryFolder folder;
  const auto check_old = [&] {
    CHECK(testing::read_text(folder / "x") == "old");
    CHECK(entries(folder.path()) == 1);
  };
  {
    AtomicFile file(folder / "x");
    file.write("old", 3);
    CHECK_FALSE(fs::exists(folder / "x"));
    file.commit();
  }
  check_old();
  AtomicFile(folder / "x").write("new", 3);
  check_old();
  std::string text;
  {
    const FileSizeLimit limit(100'000);
    text = input_error([&] { write_text(folder / "x", std::string(1'000'000, 'n')); });
  }
  CHECK_THAT(text, Contains("cannot be written") && Contains((folder / "x").string()));
  check_old();
}

TEST_CASE("preparing a folder creates it and leaves nothing in it") {
  const TemporaryFolder folder;
  for (int i = 0; i < 2; ++i) prepare_folder(folder / "a" / "b", "--output");
  CHECK(fs::is_directory(folder / "a" / "b"));
  CHECK(entries(folder / "a" / "b") == 0);
}

TEST_CASE("what cannot be created is an error") {
  const TemporaryFolder folder;
  CHECK_THAT(input_error([&] { write_text(folder / "none" / "x", "text"); }),
             Contains("cannot be created") && Contains("No such file"));
  write_text(folder / "file", "");
  CHECK_THAT(input_error([&] { prepare_folder(folder / "file" / "out", "--output"); }),
             Contains("cannot be created") && Contains("--output") && Contains("file/out"));
  CHECK_THAT(input_error([&] { prepare_folder(folder / "file", "--output"); }),
             Contains("--output"));
}

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
// What a user can get wrong: each ends every rank, with a text that says what, where and which
// rank.
#include <catch2/catch.hpp>

#include "image_io.h"
#include "run.h"
#include "support.h"

namespace edsr {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using testing::make_photographs;
using testing::Outcome;
using testing::quick;
using testing::run_edsr;
using testing::run_edsr_pair;
using testing::TemporaryFolder;

constexpr int kTimedOut = 124;

void require_failure(const Outcome& outcome) {
  INFO(outcome.output);
  REQUIRE(outcome.status != 0);
  REQUIRE(outcome.status != kTimedOut);
}

void truncate_file(const fs::path& path) {
  const std::string whole = testing::read_text(path);
  testing::write_bytes(path, whole.substr(0, whole.size() / 2));
}

}  // namespace

TEST_CASE("a missing folder of photographs ends the run") {
  const TemporaryFolder folder;
  const Outcome outcome = run_edsr(2, quick(folder / "none", folder / "out") + "--steps 5");
  require_failure(outcome);
  CHECK_THAT(outcome.output, Contains("no such file or folder") && Contains("none"));
}

TEST_CASE("a corrupt image on every rank ends the run and is named") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  truncate_file(folder.path() / "data" / "f.png");
  const Outcome outcome = run_edsr(2, quick(folder / "data", folder / "out") + "--steps 5");
  require_failure(outcome);
  CHECK_THAT(outcome.output, Contains("f.png") && Contains("corrupt or truncated PNG"));
}

TEST_CASE("a corrupt image on one rank ends the other rank too") {
  const TemporaryFolder folder;
  make_photographs(folder / "zero", 8);
  make_photographs(folder / "one", 8);
  truncate_file(folder.path() / "one" / "f.png");
  const Outcome outcome = run_edsr_pair(quick(folder / "zero", folder / "out") + "--steps 5",
                                        quick(folder / "one", folder / "out") + "--steps 5");
  require_failure(outcome);
  CHECK_THAT(outcome.output, Contains("edsr: rank 1: image") && Contains("one/f.png"));
  CHECK_THAT(outcome.output, Contains("edsr: rank 0: ") && Contains("rank 1 left"));
}

TEST_CASE("an image that is missing on one rank ends both, naming the rank") {
  const TemporaryFolder folder;
  make_photographs(folder / "zero", 8);
  make_photographs(folder / "one", 8);
  fs::remove(folder.path() / "one" / "b.png");
  const Outcome outcome = run_edsr_pair(quick(folder / "zero", folder / "out") + "--steps 5",
                                        quick(folder / "one", folder / "out") + "--steps 5");
  require_failure(outcome);
  CHECK_THAT(outcome.output, Contains("photographs of rank 1 differ from rank 0's"));
}

TEST_CASE("options that are wrong on one rank alone end both, and that rank says why") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const std::string right = quick(folder / "data", folder / "out") + "--steps 5";
  const Outcome outcome = run_edsr_pair(right, right + " --no-such-option");
  require_failure(outcome);
  CHECK_THAT(outcome.output, Contains("edsr: rank 1: ") && Contains("--no-such-option") &&
                                 Contains("edsr: rank 0: ") && !Contains("terminate called"));
}

TEST_CASE("an output folder that cannot be written ends the run before training") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  testing::write_bytes(folder / "file", "");
  const Outcome outcome =
      run_edsr(2, quick(folder / "data", folder.path() / "file" / "out") + "--steps 5");
  require_failure(outcome);
  CHECK_THAT(outcome.output,
             Contains("edsr: rank 0: folder") && Contains("file/out") && Contains("--output"));
  CHECK_THAT(outcome.output, !Contains("photographs to train on"));
}

TEST_CASE("a table that cannot be written ends the run before training") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  testing::write_bytes(folder / "file", "");
  const std::string options = quick(folder / "data", folder / "out") + "--steps 5 --json ";
  const Outcome below = run_edsr(1, options + (folder / "file").string() + "/t.json");
  require_failure(below);
  CHECK_THAT(below.output, Contains("--json"));
  const Outcome is_folder = run_edsr(1, options + folder.path().string());
  require_failure(is_folder);
  CHECK_THAT(is_folder.output, Contains("--json") && Contains("is a folder"));
}

TEST_CASE("a truncated checkpoint is refused and left as it is") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const std::string options = quick(folder / "data", folder / "out");
  REQUIRE(run_edsr(1, options + "--steps 5").status == 0);
  const fs::path checkpoint = folder.path() / "out" / "checkpoint.pt";
  truncate_file(checkpoint);
  const auto size = fs::file_size(checkpoint);
  const Outcome outcome = run_edsr(2, options + "--steps 10 --resume");
  require_failure(outcome);
  CHECK_THAT(outcome.output, Contains("edsr: rank 0: checkpoint") && Contains("truncated"));
  CHECK(fs::file_size(checkpoint) == size);
}

TEST_CASE("resuming with other options, or without a checkpoint, is refused") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const std::string options = quick(folder / "data", folder / "out");
  const Outcome none = run_edsr(1, options + "--steps 5 --resume");
  require_failure(none);
  CHECK_THAT(none.output, Contains("does not exist"));
  REQUIRE(run_edsr(1, options + "--steps 5").status == 0);
  const Outcome other = run_edsr(1, options + "--steps 10 --seed 3 --resume");
  require_failure(other);
  CHECK_THAT(other.output, Contains("seed 1 there, 3 here"));
  const Outcome finished = run_edsr(1, options + "--steps 5 --resume");
  require_failure(finished);
  CHECK_THAT(finished.output, Contains("nothing left to train") && Contains("raise --steps"));
}

TEST_CASE("a batch that the ranks cannot share equally is refused") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const Outcome outcome = run_edsr(3, quick(folder / "data", folder / "out") + "--steps 5");
  require_failure(outcome);
  CHECK_THAT(outcome.output, Contains("--batch 8") && Contains("multiple of 3"));
}

TEST_CASE("a diverging run ends with the step and the way out") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const Outcome outcome =
      run_edsr(2, quick(folder / "data", folder / "out") + "--steps 60 --lr 1e30");
  require_failure(outcome);
  CHECK_THAT(outcome.output, Contains("diverged") && Contains("lower --lr"));
}

TEST_CASE("a wrong option is explained once, by rank 0") {
  const Outcome outcome = run_edsr(2, "--data x --scale 7");
  require_failure(outcome);
  const std::size_t first = outcome.output.find("edsr: --scale");
  REQUIRE(first != std::string::npos);
  CHECK(outcome.output.find("edsr: --scale", first + 1) == std::string::npos);
}

}  // namespace edsr

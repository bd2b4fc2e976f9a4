// SPDX-License-Identifier: Apache-2.0
// What a user can get wrong: each ends every rank, with a text that says what, where and which
// rank.
#include <catch2/catch.hpp>

#include "tests/examples/edsr/run.h"
#include "tests/support/processes/late_cuda.h"

namespace edsr::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using ronde::test::launch_badly;
using ronde::test::launch_pair_badly;

}  // namespace

TEST_CASE("what cannot be read, written or shared out ends every rank, and is named") {
  struct Case {
    int ranks;
    Words options;
    Words texts;
  };
  const Workspace here;
  make_photographs(here / "corrupt", 8);
  cut_file(here / "corrupt" / "f.png", 50);
  write_bytes(here / "file", "");
  const std::string file = (here / "file").string();
  const std::string folder = here.path().string();
  for (const Case& one : {
           Case{2, here.options("out", "--steps 5", "none"), {"no such file or folder", "none"}},
           Case{2,
                here.options("out", "--steps 5", "corrupt"),
                {"f.png", "corrupt or truncated PNG"}},
           Case{2, here.options("file/out", "--steps 5"), {"edsr: folder", "file/out", "--output"}},
           Case{1, here.options("out", "--steps 5 --json " + file + "/t.json"), {"--json"}},
           Case{1, here.options("out", "--steps 5 --json " + folder), {"--json", "is a folder"}},
           Case{3, here.options("out", "--steps 5"), {"--batch 8", "multiple of 3"}},
       }) {
    const std::string output = launch_badly(one.ranks, one.options);
    for (const std::string& text : one.texts) CHECK_THAT(output, Contains(text));
    CHECK_THAT(output, !Contains("photographs to train on"));
  }
}

TEST_CASE("what is wrong on one rank alone ends both, and that rank is named") {
  const Workspace here;
  const Words right = here.options("out", "--steps 5");

  make_photographs(here / "corrupt", 8);
  cut_file(here / "corrupt" / "f.png", 50);
  CHECK_THAT(launch_pair_badly(right, here.options("out", "--steps 5", "corrupt")),
             Contains("edsr: image") && Contains("corrupt/f.png") &&
                 Contains("edsr: rank 1 aborted: image"));

  make_photographs(here / "fewer", 7);
  CHECK_THAT(launch_pair_badly(right, here.options("out", "--steps 5", "fewer")),
             Contains("photographs of rank 1 differ from rank 0's"));

  CHECK_THAT(launch_pair_badly(right, here.options("out", "--steps 5 --no-such-option")),
             Contains("--no-such-option") && Contains("edsr: rank 1 called shutdown()"));
}

TEST_CASE("a checkpoint that cannot be resumed from is refused and left as it is") {
  const Workspace here;
  const std::string trained = here.train(1, "out", "--steps 5 --resume");  // from none
  CHECK_THAT(launch_badly(1, here.options("out", "--steps 10 --seed 3 --resume")),
             Contains("seed 1 there, 3 here"));
  // As where it was killed while it evaluated.
  const std::string evaluated = here.train(1, "out", "--steps 5 --resume");
  CHECK_THAT(evaluated, Contains("nothing left to train") && Contains("raise --steps"));
  for (const std::string row : {"  mean ", "loss, first and last step"}) {
    const std::size_t begin = trained.find(row);
    REQUIRE(begin != std::string::npos);
    CHECK_THAT(evaluated, Contains(trained.substr(begin, trained.find('\n', begin) - begin)));
  }

  CHECK_THAT(launch_badly(1, here.options("out", "--steps 9 --resume --blocks 2")),
             Contains("of another program or model") && Contains("network/"));

  const fs::path folder = here / "out" / "checkpoint";
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (file.path().extension() == ".pt") cut_file(file.path(), 50);
  }
  CHECK_THAT(launch_badly(2, here.options("out", "--steps 10 --resume")),
             Contains("no checkpoint in " + folder.string()) && Contains("it is a part of a file"));
}

TEST_CASE("a diverging run ends with the way out, a wrong option is explained once, by rank 0") {
  const Workspace here;
  CHECK_THAT(launch_badly(2, here.options("out", "--steps 60 --lr 1e30")),
             Contains("diverged") && Contains("lower --lr"));
  ronde::test::check_refused_once(2, {"--data", "x", "--scale", "7"}, "edsr: --scale");
}

TEST_CASE("a run with --device cuda opens libtorch_cuda before it asks LibTorch for a GPU") {
  const Workspace here;
  for (const Words& options : {here.options("out", "--steps 5 --device cuda"),
                               split("--efficiency --device cuda --blocks 1 --features 4")}) {
    CHECK_THAT(launch_badly(1, options, ronde::test::with_late_cuda()),
               Contains("--device cuda: Ronde has no backend for GPUs here"));
  }
}

}  // namespace edsr::testing

// SPDX-License-Identifier: Apache-2.0
// What a user can get wrong: each ends every rank, with a text that says what and where.
#include <catch2/catch.hpp>

#include "run.h"
#include "tests/support/temporary_folder.h"

namespace kmeans {
namespace {

using Catch::Contains;
using ronde::test::CommandResult;
using ronde::test::TemporaryFolder;
using testing::run;
using testing::run_pair;
using testing::Words;
using testing::write_file;

constexpr int kTimedOut = 124;

void require_failure(const CommandResult& outcome, const std::string& text) {
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.exit_code != 0);
  REQUIRE(outcome.exit_code != kTimedOut);
  CHECK_THAT(outcome.err, Contains(text) && !Contains("terminate called"));
}

}  // namespace

TEST_CASE("data that cannot be used ends every rank with what is wrong") {
  struct Case {
    std::string data;
    Words options;
    std::string text;
  };
  const TemporaryFolder folder;
  const std::string file = (folder / "points.csv").string();
  const std::string output = (folder / "out").string();
  for (const Case& one :
       {Case{"1,2\n3\n", {}, file + ", line 2: has 1 fields, line 1 has 2"},
        // Only one rank sees it: the others must have nothing to refuse, or the launcher may end
        // that rank before it has said so.
        Case{"1,2\n3,x\n5,6\n",
             {"--clusters", "2"},
             file + ", line 2: field 2: 'x' is no finite number"},
        Case{"", {}, file + " holds no rows"},
        Case{"1,2\n3,4\n", {"--clusters", "3"}, "--clusters 3 is more than the 2 points of"},
        Case{"1,2\n3,4\n", {"--clusters", "2"}, "cannot be divided among 3 ranks; start at most 2"},
        Case{"1,2\n3,4\n", {"--clusters", "0"}, "kmeans: --clusters"},
        Case{"1,2\n3,4\n5,6\n", {"--clusters", "2", "--output", file}, "--output"}}) {
    INFO(one.text);
    write_file(file, one.data);
    Words words = {"--data", file, "--output", output};
    words.insert(words.end(), one.options.begin(), one.options.end());
    require_failure(run(3, words), one.text);
  }
}

TEST_CASE("a file that is not there is named, with the way to the digits") {
  const TemporaryFolder folder;
  const std::string output = (folder / "out").string();
  require_failure(run(2, {"--data", (folder / "none.csv").string(), "--output", output}),
                  "none.csv: cannot be opened: No such file or directory");
  const CommandResult no_digits =
      run(2, {"--output", output}, {{"XDG_CACHE_HOME", folder.path().string()}});
  require_failure(no_digits, (folder.path() / "ronde" / "digits.csv.gz").string());
  CHECK_THAT(no_digits.err, Contains("scripts/deps.sh") && Contains("--data"));
  require_failure(run(2, {"--labels", "--output", output}), "--labels requires --data");
}

TEST_CASE("ranks with different files all end, and a rank without one ends the other") {
  const TemporaryFolder folder;
  const auto options = [&](const char* name) -> Words {
    return {"--data", (folder / name).string(), "--output", (folder / "out").string(), "--clusters",
            "2"};
  };
  write_file(folder / "zero.csv", "1,2\n3,4\n");
  write_file(folder / "one.csv", "1,2\n3,5\n");
  const CommandResult different = run_pair(options("zero.csv"), options("one.csv"));
  require_failure(different, "the ranks have read different files");
  // Whichever is told first may be gone before the other one is.
  for (const char* const rank : {"rank 0", "rank 1"}) {
    CHECK_THAT(different.err,
               Contains("kmeans: " + std::string(rank) + ": the ranks have read different files") ||
                   (Contains("kmeans: " + std::string(rank) + ": ") && Contains(" left without")));
  }

  const CommandResult missing = run_pair(options("zero.csv"), options("none.csv"));
  require_failure(missing, "kmeans: rank 1: file ");
  CHECK_THAT(missing.err, Contains("kmeans: rank 0: ") && Contains("rank 1 left"));
}

}  // namespace kmeans

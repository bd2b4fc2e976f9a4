// SPDX-License-Identifier: Apache-2.0
// What a user can get wrong: each ends every rank, with a text that says what and where.
#include <catch2/catch.hpp>
#include <iterator>
#include <regex>

#include "tests/examples/kmeans/run.h"
#include "tests/support/processes/temporary_folder.h"

namespace kmeans::testing {
namespace {

using Catch::Contains;
using ronde::test::launch_badly;
using ronde::test::launch_pair_badly;
using ronde::test::TemporaryFolder;
using ronde::test::write_bytes;

}  // namespace

// What reading can find wrong with a file: table_test.cc.
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
        Case{"1,2\n3,4\n", {"--clusters", "3"}, "--clusters 3 is more than the 2 points of"},
        Case{"1,2\n3,4\n", {"--clusters", "2"}, "cannot be divided among 3 ranks; start at most 2"},
        Case{"1,2\n3,4\n", {"--clusters", "0"}, "kmeans: --clusters"},
        Case{"1,2\n3,4\n5,6\n", {"--clusters", "2", "--output", file}, "--output"}}) {
    INFO(one.text);
    write_bytes(file, one.data);
    Words words = {"--data", file, "--output", output};
    words.insert(words.end(), one.options.begin(), one.options.end());
    CHECK_THAT(launch_badly(3, words), Contains(one.text));
  }
}

TEST_CASE("help is printed, and nothing else, where Ronde itself could not start") {
  const auto result = ronde::test::launch(1, {"--help"}, {{"RONDE_LOG_LEVEL", "nonsense"}});
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("--clusters"));
  CHECK(result.err.empty());
}

TEST_CASE("a file that is not there is named, with the way to the digits") {
  const TemporaryFolder folder;
  const std::string output = (folder / "out").string();
  CHECK_THAT(launch_badly(2, {"--data", (folder / "none.csv").string(), "--output", output}),
             Contains("none.csv: cannot be opened: No such file or directory"));
  CHECK_THAT(launch_badly(2, {"--output", output}, {{"XDG_CACHE_HOME", folder.path().string()}}),
             Contains((folder.path() / "ronde" / "digits.csv.gz").string()) &&
                 Contains("scripts/deps.sh") && Contains("--data"));
  CHECK_THAT(launch_badly(2, {"--labels", "--output", output}),
             Contains("--labels requires --data"));
}

TEST_CASE("ranks with different files all end, and a rank without one ends the other") {
  const TemporaryFolder folder;
  const auto options = [&](const char* name) -> Words {
    return {"--data", (folder / name).string(), "--output", (folder / "out").string(), "--clusters",
            "2"};
  };
  write_bytes(folder / "zero.csv", "1,2\n3,4\n");
  write_bytes(folder / "one.csv", "1,2\n3,5\n");
  const std::string different = launch_pair_badly(options("zero.csv"), options("one.csv"));
  const std::string reason = "the ranks have read different files";
  // Whichever finds it first may end the other one before that has.
  const std::regex said("kmeans: (rank [01] aborted: )?" + reason);
  CHECK(std::distance(std::sregex_iterator(different.begin(), different.end(), said), {}) == 2);
  CHECK_THAT(launch_pair_badly(options("zero.csv"), options("none.csv")),
             Contains("kmeans: file ") && Contains("kmeans: rank 1 aborted: file "));
}

}  // namespace kmeans::testing

// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using Catch::Contains;
using ronde::test::launch_well;

struct Epoch {
  double loss = 0;
  double percent_right = 0;
};

/// Fails the test where the text is not the epochs in order, and the last line, which is about
/// `ranks` ranks.
std::vector<Epoch> read_epochs(const std::string& text, int ranks) {
  INFO(text);
  const std::regex epoch_line(
      R"(epoch +(\d+): loss (\d\.\d{4}), (\d+\.\d) % of the unseen digits read right)");
  std::vector<Epoch> epochs;
  std::istringstream lines(text);
  std::string line;
  std::smatch parts;
  while (std::getline(lines, line) && std::regex_match(line, parts, epoch_line)) {
    epochs.push_back({std::stod(parts[2]), std::stod(parts[3])});
    CHECK(std::stoul(parts[1]) == epochs.size());
  }
  CHECK(line == std::to_string(ranks) + " ranks, equal to the last bit");
  CHECK_FALSE(std::getline(lines, line));
  return epochs;
}

}  // namespace

TEST_CASE("one to four ranks learn the digits alike, and hold the same bits") {
  std::vector<Epoch> alone;
  for (const int ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    const std::vector<Epoch> epochs = read_epochs(launch_well(ranks, {}), ranks);
    if (ranks == 1) alone = epochs;
    REQUIRE(epochs.size() == 10);
    for (std::size_t i = 0; i < epochs.size(); ++i) {
      // Rounded by the program, to 4 digits and to 1.
      CHECK(epochs[i].loss == Approx(alone[i].loss).margin(1.01e-4));
      CHECK(epochs[i].percent_right == Approx(alone[i].percent_right).margin(0.101));
    }
    CHECK(epochs.front().loss > 1);
    CHECK(epochs.back().loss < 0.1);
    CHECK(epochs.back().percent_right > 95);
  }
}

TEST_CASE("without its data it says how to get them, and refuses other data") {
  const ronde::test::TemporaryFolder cache;
  const std::string file = cache / "ronde" / "digits.csv.gz";
  const auto output = [&] {
    // Rank 0, which logs whose failure ended the group, may not be the first to fail.
    return "\n" + ronde::test::launch_pair_badly({}, {}, {{"XDG_CACHE_HOME", cache.path()}});
  };
  CHECK_THAT(output(), Contains("\ndigits: the handwritten digits are not at " + file) &&
                           Contains("scripts/deps.sh") && Contains(" aborted: the handwritten"));
  std::filesystem::create_directory(cache / "ronde");
  ronde::test::write_bytes(file, "1,2,3\n4,5,6\n");
  CHECK_THAT(output(), Contains("does not hold 1797 images") && Contains(file));
}

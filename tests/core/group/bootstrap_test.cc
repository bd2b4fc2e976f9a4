// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other through rank 0 while they start: no engine runs here.
#include "core/src/group/bootstrap.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "ronde/error.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/results_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

const std::vector<int> kHosts = {0, 0, 1, 1, 1};  // ranks 3 and 4 speak with rank 0 by rank 2
constexpr int kSize = 5;

/// What `body(rank, bootstrap)` returns on each rank.
template <typename Body>
auto on_each_start(const Body& body, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const inproc::Group group(kHosts);
  const auto deadline = Bootstrap::Clock::now() + limit;
  std::vector<ControlTree> trees(kSize);  // no rank closes while others may wait for it
  return on_each_rank(kSize, [&](int rank) {
    ControlTree& tree = trees[static_cast<std::size_t>(rank)];
    tree.open(group.transport(rank)());
    Bootstrap bootstrap(tree, deadline);
    return body(rank, bootstrap);
  });
}

TEST_CASE("an exchange brings the blobs of all ranks to every rank, as often as they meet") {
  const std::vector<std::string> expected = {"0", "1", "2", "3", "4", "", "", "", "", ""};
  const auto results = on_each_start([](int rank, Bootstrap& bootstrap) {
    std::vector<std::string> all = bootstrap.exchange(std::to_string(rank));
    for (std::string& blob : bootstrap.exchange("")) all.push_back(std::move(blob));
    return all;
  });
  for (const std::vector<std::string>& result : results) CHECK(result == expected);
}

TEST_CASE("of what ranks say in a start every rank hears the first word and its speaker") {
  const auto results = on_each_start([](int rank, Bootstrap& bootstrap) {
    int speaker = -1;
    const std::string word = bootstrap.first_text(rank >= 3 ? "no" : "", speaker);
    int nobody = -1;
    const std::string silence = bootstrap.first_text("", nobody);
    return word + std::to_string(speaker) + silence;
  });
  for (const std::string& result : results) CHECK(result == "no3");
}

TEST_CASE("configurations that differ refuse the start on every rank, with one text") {
  const auto results = on_each_start([](int rank, Bootstrap& bootstrap) {
    RuntimeOptions options = options_of(inproc::Group(1), 0);
    bootstrap.compare_configurations(options);
    const bool was_refused = bootstrap.is_refused();
    if (rank == 4) options.config.fusion_bytes += 4096;
    const std::string text =
        text_of<UsageError>([&] { bootstrap.compare_configurations(options); });
    check(!was_refused && bootstrap.is_refused(), "refused only then");
    return text;
  });
  CHECK_THAT(results[0], Catch::Contains("RONDE_FUSION_BYTES"));
  for (const std::string& result : results) CHECK(result == results[0]);
}

TEST_CASE("a rank that does not come to an exchange in time is the one that all ranks name") {
  const auto deaths = on_each_start(
      [](int rank, Bootstrap& bootstrap) {
        if (rank == 3) return Death();
        return death_of([&] { bootstrap.exchange("here"); });
      },
      std::chrono::seconds(1));  // in which the others are to come
  for (const int rank : {0, 1, 2, 4}) {
    check_same_death({deaths[static_cast<std::size_t>(rank)]}, 3, {"RONDE_INIT_TIMEOUT_S"});
  }
}

}  // namespace

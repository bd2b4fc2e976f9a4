// SPDX-License-Identifier: Apache-2.0
#include "tests/examples/kmeans/run.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/support/processes/temporary_folder.h"

namespace kmeans::testing {
namespace {

namespace fs = std::filesystem;
using ronde::test::read_text;

/// All but the times and the number of ranks.
nlohmann::json without_times(nlohmann::json report) {
  report.erase("ranks");
  report.erase("phases");
  return report;
}

}  // namespace

Result cluster(const fs::path& folder, int ranks, const Words& options) {
  const fs::path output = folder / ("ranks_" + std::to_string(ranks));
  const fs::path json = output / "report.json";
  const fs::path picture = output / "centroids.png";
  Words words = options;
  words.insert(words.end(), {"--output", output.string(), "--json", json.string()});
  const std::string text = ronde::test::launch_well(ranks, words);
  const std::string image = fs::exists(picture) ? read_text(picture) : "";
  const std::string centroids = read_text(output / "centroids.csv");
  const auto report = nlohmann::json::parse(read_text(json));
  CHECK(std::ranges::count(centroids, '\n') == report["clusters"].get<std::int64_t>());
  return {.centroids = ronde::test::read_numbers(output / "centroids.csv"),
          .assignments = ronde::test::read_numbers(output / "assignments.csv"),
          .picture = image,
          .files = centroids + read_text(output / "assignments.csv") + image,
          .report = report,
          .text = text};
}

Result cluster_on_one_to_four(const fs::path& folder, const Words& options) {
  const Result one = cluster(folder, 1, options);
  for (const int ranks : {2, 3, 4}) {
    INFO(ranks << " ranks");
    const Result many = cluster(folder, ranks, options);
    CHECK(many.files == one.files);
    CHECK(many.report["ranks"] == ranks);
    CHECK(without_times(many.report) == without_times(one.report));
  }
  return one;
}

void check_same(const Result& result, const Expected& expected) {
  const std::vector<double> assignments(expected.assignments.begin(), expected.assignments.end());
  CHECK(result.assignments == assignments);
  CHECK(result.report["iterations"] == expected.iterations);
  CHECK(result.report["empty_moved"] == expected.empty_moved);
  CHECK(result.report["converged"] == expected.converged);
}

std::string to_csv(const Rows& rows) {
  std::ostringstream text;
  text.precision(17);
  for (const std::vector<double>& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) text << (i == 0 ? "" : ",") << row[i];
    text << "\n";
  }
  return text.str();
}

}  // namespace kmeans::testing

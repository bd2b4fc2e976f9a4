// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <sstream>

#include "tests/support/temporary_folder.h"

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

Rows Result::centroids() const {
  Rows rows;
  std::istringstream lines(files.centroids);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    rows.emplace_back();
    for (std::string field; std::getline(fields, field, ',');) {
      rows.back().push_back(std::strtod(field.c_str(), nullptr));
    }
  }
  return rows;
}

std::vector<std::int32_t> Result::assignments() const {
  std::istringstream lines(files.assignments);
  std::vector<std::int32_t> all;
  for (std::int32_t cluster = 0; lines >> cluster;) all.push_back(cluster);
  return all;
}

Result cluster(const fs::path& folder, int ranks, const Words& options) {
  const fs::path output = folder / ("ranks_" + std::to_string(ranks));
  const fs::path json = output / "report.json";
  const fs::path picture = output / "centroids.png";
  Words words = options;
  words.insert(words.end(), {"--output", output.string(), "--json", json.string()});
  const std::string text = ronde::test::launch_well(ranks, words);
  return {{read_text(output / "centroids.csv"), read_text(output / "assignments.csv"),
           fs::exists(picture) ? read_text(picture) : ""},
          nlohmann::json::parse(read_text(json)),
          text};
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
  CHECK(result.assignments() == expected.assignments);
  CHECK(result.report["iterations"] == expected.iterations);
  CHECK(result.report["empty_moved"] == expected.empty_moved);
  CHECK(result.report["converged"] == expected.converged);
  CHECK(result.report["inertia"].get<double>() == Approx(expected.inertia).epsilon(1e-12));
}

std::string to_csv(const Rows& rows) {
  std::string text;
  for (const std::vector<double>& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      char number[40];
      std::snprintf(number, sizeof(number), "%s%.17g", i == 0 ? "" : ",", row[i]);
      text += number;
    }
    text += "\n";
  }
  return text;
}

}  // namespace kmeans::testing

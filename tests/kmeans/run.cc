// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/temporary_folder.h"

namespace kmeans::testing {
namespace {

using ronde::test::CommandResult;
using ronde::test::read_text;

Words launcher() {
  return {"/usr/bin/env", "timeout", "-k", "5", "60", KMEANS_LAUNCHER_PROGRAM};
}

void add_program(Words& words, int ranks, const Words& options) {
  words.insert(words.end(), {KMEANS_LAUNCHER_COUNT, std::to_string(ranks), KMEANS_PROGRAM});
  words.insert(words.end(), options.begin(), options.end());
}

/// All but the times and the number of ranks.
nlohmann::json without_times(nlohmann::json report) {
  report.erase("ranks");
  report.erase("phases");
  return report;
}

}  // namespace

CommandResult run(int ranks, const Words& options,
                  const std::map<std::string, std::string>& environment) {
  Words words = launcher();
  add_program(words, ranks, options);
  return ronde::test::run_program(words, environment);
}

CommandResult run_pair(const Words& first, const Words& second) {
  Words words = launcher();
  // Hydra would otherwise kill the other rank before it can say what it saw.
  words.emplace_back("-disable-auto-cleanup");
  add_program(words, 1, first);
  words.emplace_back(":");
  add_program(words, 1, second);
  return ronde::test::run_program(words);
}

std::vector<std::int32_t> Result::assignments() const {
  std::istringstream lines(files.assignments);
  std::vector<std::int32_t> all;
  for (std::int32_t cluster = 0; lines >> cluster;) all.push_back(cluster);
  return all;
}

Result cluster(const std::filesystem::path& folder, int ranks, const Words& options) {
  const std::filesystem::path output = folder / ("ranks_" + std::to_string(ranks));
  const std::filesystem::path json = output / "report.json";
  Words words = options;
  words.insert(words.end(), {"--output", output.string(), "--json", json.string()});
  const CommandResult outcome = run(ranks, words);
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const std::filesystem::path picture = output / "centroids.png";
  return {{read_text(output / "centroids.csv"), read_text(output / "assignments.csv"),
           std::filesystem::exists(picture) ? read_text(picture) : ""},
          nlohmann::json::parse(read_text(json)),
          outcome.out};
}

Result cluster_on_one_to_four(const std::filesystem::path& folder, const Words& options) {
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

Rows parse_rows(const std::string& text) {
  Rows rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    rows.emplace_back();
    for (std::string field; std::getline(fields, field, ',');) {
      rows.back().push_back(std::strtod(field.c_str(), nullptr));
    }
  }
  return rows;
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

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  REQUIRE(file.good());
}

}  // namespace kmeans::testing

// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, on points made for the test, against a plain k-means.
#include <catch2/catch.hpp>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "common/table.h"
#include "tests/examples/kmeans/oracle.h"
#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"

namespace kmeans::testing {
namespace {

using Catch::Contains;
using namespace ronde::test;

/// The report and the output of a run.
struct Result {
  nlohmann::json report;
  std::string text;

  std::vector<double> centroids() const { return report["centroids"]; }  ///< one after the other
  std::vector<std::int64_t> start_rows() const { return report["start_rows"]; }
};

/// Runs with a --json below `folder` and requires success.
Result cluster(const std::filesystem::path& folder, int ranks, const Words& options) {
  const std::filesystem::path json = folder / "report.json";
  Words words = options;
  words.insert(words.end(), {"--json", json.string()});
  const std::string text = launch_well(ranks, words);
  return {.report = nlohmann::json::parse(read_text(json)), .text = text};
}

/// Requires that one to four ranks give the same, bit for bit. Returns what one gave.
Result cluster_on_one_to_four(const std::filesystem::path& folder, const Words& options) {
  const Result one = cluster(folder, 1, options);
  for (const int ranks : {2, 3, 4}) {
    INFO(ranks << " ranks");
    nlohmann::json many = cluster(folder, ranks, options).report;
    CHECK(many["ranks"] == ranks);
    many["ranks"] = 1;
    CHECK(many == one.report);
  }
  return one;
}

/// Checks that the run took the same steps as the plain one, which it returns.
Expected check_same(const Result& result, const Rows& points, int iterations) {
  const Expected expected = plain_kmeans(points, rows_at(points, result.start_rows()), iterations);
  CHECK(result.report["assignments"].get<std::vector<std::int32_t>>() == expected.assignments);
  CHECK(result.report["iterations"] == expected.iterations);
  CHECK(result.report["empty_moved"] == expected.empty_moved);
  CHECK(result.report["converged"] == expected.converged);
  return expected;
}

/// Checks a result of whole numbers, whose sums are exact, for equality.
void check_equal(const Result& result, const Rows& points, int iterations) {
  const Expected expected = check_same(result, points, iterations);
  CHECK(result.centroids() == flatten(expected.centroids));
  CHECK(result.report["inertia"].get<double>() == Approx(expected.inertia).epsilon(1e-12));
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

/// Around `centers` random places, in units of `scale`.
Rows clouds(std::size_t rows, std::size_t columns, std::size_t centers, double scale,
            unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Rows middle(centers, std::vector<double>(columns));
  for (auto& place : middle) {
    for (double& value : place) value = 4 * normal(random);
  }
  Rows points;
  for (std::size_t i = 0; i < rows; ++i) {
    points.push_back(middle[i % centers]);
    for (double& value : points.back()) value = scale * (value + normal(random));
  }
  return points;
}

}  // namespace

TEST_CASE("whole numbers end on one to four ranks bit for bit where a plain k-means does") {
  struct Case {
    Rows points;
    int clusters;
    int iterations;
  };
  const TemporaryFolder folder;
  // The last has 41 points at 4 places: three clusters stay empty.
  for (const Case& one :
       {Case{whole_numbers(203, 5, 16, 1), 7, 300}, Case{whole_numbers(203, 5, 16, 2), 7, 3},
        Case{whole_numbers(64, 1, 1000000, 3), 1, 300}, Case{whole_numbers(5, 3, 100, 4), 5, 300},
        Case{whole_numbers(41, 2, 2, 5), 7, 300}}) {
    INFO(one.points.size() << " points, " << one.clusters << " clusters");
    write_bytes(folder / "points.csv", to_csv(one.points));
    const Result result = cluster_on_one_to_four(
        folder.path(), {"--data", folder / "points.csv", "--clusters", std::to_string(one.clusters),
                        "--iterations", std::to_string(one.iterations)});
    check_equal(result, one.points, one.iterations);
  }
}

TEST_CASE("real numbers of any size end where a plain k-means does, within rounding") {
  const TemporaryFolder folder;
  for (const double scale : {1.0, 1e-200, 1e150}) {
    INFO("scale " << scale);
    // The plain one takes units of `scale`, where it neither overflows nor underflows.
    Rows points = clouds(300, 3, 6, scale, 7);
    write_bytes(folder / "points.csv", to_csv(points));
    const Result result =
        cluster_on_one_to_four(folder.path(), {"--data", folder / "points.csv", "--clusters", "6"});
    for (auto& point : points) {
      for (double& value : point) value /= scale;
    }
    const Expected expected = check_same(result, points, 300);
    CHECK(expected.converged);
    CHECK(result.report["purity"].is_null());  // without labels
    const std::vector<double> centroids = flatten(expected.centroids);
    REQUIRE(result.centroids().size() == centroids.size());
    for (std::size_t i = 0; i < centroids.size(); ++i) {
      CHECK(result.centroids()[i] / scale == Approx(centroids[i]).epsilon(0).margin(1e-12));
    }
  }
}

TEST_CASE("the start depends on the seed, and is made of distinct points where it can be") {
  const TemporaryFolder folder;
  write_bytes(folder / "points.csv", to_csv(clouds(100, 2, 5, 1.0, 3)));
  const auto start = [&](const char* seed) {
    return cluster(folder.path(), 2,
                   {"--data", folder / "points.csv", "--clusters", "5", "--seed", seed})
        .start_rows();
  };
  const std::vector<std::int64_t> one = start("1");
  CHECK(one == start("1"));
  CHECK(one != start("2"));
  CHECK(std::set<std::int64_t>(one.begin(), one.end()).size() == 5);
}

TEST_CASE("labels give a purity, and a header is left out") {
  const TemporaryFolder folder;
  write_bytes(folder / "points.csv",
              "a,b,c,d,kind\n0,0,0,1,low\n0,1,0,0,low\n9,9,9,8,high\n8,9,9,9,high\n0,0,1,0,high\n");
  const Result result = cluster_on_one_to_four(
      folder.path(),
      {"--data", folder / "points.csv", "--labels", "--header", "--clusters", "2", "--seed", "3"});
  CHECK(result.report["points"] == 5);
  CHECK(result.report["columns"] == 4);
  CHECK(result.report["purity"].get<double>() == Approx(0.8));
  CHECK_THAT(result.text, Contains("low, 66.7 %") && Contains("high, 100.0 %"));
}

TEST_CASE("the digits end on one to four ranks bit for bit where a plain k-means does") {
  if (!std::filesystem::exists(example::digits_path())) {
    WARN("left out: no " << example::digits_path());
    return;
  }
  const TemporaryFolder folder;
  const Result result = cluster_on_one_to_four(folder.path(), {});
  const example::Table table =
      example::read_table(example::digits_path(), {.header = false, .labels = true}, {});
  REQUIRE(table.rows == 1797);
  REQUIRE(table.columns == 64);
  Rows points;
  for (auto row = table.values.begin(); row != table.values.end(); row += 64) {
    points.emplace_back(row, row + 64);
  }
  check_equal(result, points, 300);
  CHECK(result.report["converged"] == true);
  // Ten clusters that knew nothing of the digits would have a purity near 0.1.
  CHECK(result.report["purity"].get<double>() > 0.7);
}

// More mistakes in files are in table_test.cc.
TEST_CASE("data that cannot be used ends every rank with what is wrong") {
  struct Case {
    std::string data;
    Words options;
    std::string text;
  };
  const TemporaryFolder folder;
  const std::string file = folder / "points.csv";
  for (const Case& one :
       {// Only one rank sees it: the others must have nothing to refuse, or the launcher may end
        // that rank before it has said so.
        Case{"1,2\n3,x\n5,6\n",
             {"--clusters", "2"},
             file + ", line 2: field 2: 'x' is no finite number"},
        Case{"1,2\n3,4\n", {"--clusters", "3"}, "--clusters 3 is more than the 2 points of"},
        Case{"1,2\n3,4\n", {"--clusters", "2"}, "cannot be divided among 3 ranks; start at most 2"},
        Case{"1,2\n3,4\n", {"--clusters", "0"}, "kmeans: --clusters"},
        Case{"1,2\n3,4\n5,6\n", {"--clusters", "2", "--json", file + "/x"}, "--json"}}) {
    INFO(one.text);
    write_bytes(file, one.data);
    Words words = {"--data", file};
    words.insert(words.end(), one.options.begin(), one.options.end());
    CHECK_THAT(launch_badly(3, words), Contains(one.text));
  }
}

TEST_CASE("help is printed, and nothing else, where Ronde itself could not start") {
  const auto result = launch(1, {"--help"}, {{"RONDE_LOG_LEVEL", "nonsense"}});
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("--clusters"));
  CHECK(result.err.empty());
}

TEST_CASE("a file that is not there is named, with the way to the digits") {
  const TemporaryFolder folder;
  CHECK_THAT(launch_badly(2, {"--data", folder / "none.csv"}),
             Contains("none.csv: cannot be opened: No such file or directory"));
  CHECK_THAT(launch_badly(2, {}, {{"XDG_CACHE_HOME", folder.path()}}),
             Contains((folder.path() / "ronde" / "digits.csv.gz").string()) &&
                 Contains("scripts/deps.sh") && Contains("--data"));
  CHECK_THAT(launch_badly(2, {"--labels"}), Contains("--labels requires --data"));
}

TEST_CASE("ranks with different files all end, and a rank without one ends the other") {
  const TemporaryFolder folder;
  const auto options = [&](const char* name) -> Words {
    return {"--data", folder / name, "--clusters", "2"};
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

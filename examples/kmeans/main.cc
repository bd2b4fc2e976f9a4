// SPDX-License-Identifier: Apache-2.0
// K-means on Ronde's core, on one rank or, started by mpiexec, on many, with the same result.
#include <ronde/ronde.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "common/files.h"
#include "common/program.h"
#include "common/table.h"
#include "exchange.h"
#include "points.h"

namespace kmeans {
namespace {

struct Options {
  std::filesystem::path data;  ///< empty: the handwritten digits
  example::TableFormat format;
  std::int64_t clusters = 10;
  std::int64_t iterations = 300;
  std::uint64_t seed = 1;
  std::filesystem::path json;
};

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Groups points into clusters by k-means. Start it with mpiexec for several ranks; the result "
      "does not depend on their number.",
      "kmeans");
  Options options;
  CLI::Option* data =
      app.add_option("--data", options.data,
                     "CSV file of numbers, a point a line, plain or compressed by gzip [the "
                     "handwritten digits that scripts/deps.sh fetches, with --labels]");
  app.add_flag("--labels", options.format.labels,
               "The last column is a label, to compare the clusters with")
      ->needs(data);
  app.add_flag("--header", options.format.header, "The first line holds names")->needs(data);
  app.add_option("--clusters", options.clusters, "How many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--iterations", options.iterations, "Move the centroids at most so many times")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the choice of the first centroids")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--json", options.json,
                 "Write the report, the centroids and the cluster of each point to this file");
  example::parse_command_line(app, argc, argv);
  if (!options.data.empty()) return options;
  options.data = example::digits_path();
  options.format.labels = true;
  if (std::filesystem::exists(options.data)) return options;
  throw example::InputError("the handwritten digits are not at " + options.data.string() +
                            ": run scripts/deps.sh, which fetches them, or name a CSV file of your "
                            "own by --data");
}

void check_sizes(const Options& options, const example::Table& table) {
  const std::string file = options.data.string();
  if (options.clusters > table.rows) {
    throw example::InputError("--clusters " + std::to_string(options.clusters) +
                              " is more than the " + std::to_string(table.rows) + " points of " +
                              file);
  }
  if (ronde::size() > table.rows) {
    throw example::InputError("the " + std::to_string(table.rows) + " points of " + file +
                              " cannot be divided among " + std::to_string(ronde::size()) +
                              " ranks; start at most " + std::to_string(table.rows));
  }
}

/// Returns the clusters of all points, in the order of the file.
std::vector<std::int32_t> gather_assignments(const Points& points, const Clustering& clustering) {
  const std::vector<std::int32_t> by_rank =
      allgather(clustering.assignments, static_cast<std::size_t>(points.rows), "assignments");
  std::vector<std::int32_t> all(by_rank.size());
  auto next = by_rank.begin();
  for (example::Part of = {0, points.part.ranks}; of.rank < of.ranks; ++of.rank) {
    for (std::int64_t local = 0; local < of.count(points.rows); ++local) {
      all[static_cast<std::size_t>(of.rank + local * of.ranks)] = *next++;
    }
  }
  return all;
}

/// The most frequent label of a cluster (of equals, the one that the file has first).
struct ClusterLabel {
  std::string name;
  std::int64_t points = 0;
};

/// Returns the label of each cluster; empty without labels.
std::vector<ClusterLabel> label_clusters(std::int64_t clusters,
                                         const std::vector<std::int32_t>& assignments,
                                         const std::vector<std::int32_t>& labels,
                                         const std::vector<std::string>& names) {
  if (labels.empty()) return {};
  std::vector<std::vector<std::int64_t>> counts(static_cast<std::size_t>(clusters),
                                                std::vector<std::int64_t>(names.size()));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    ++counts[static_cast<std::size_t>(assignments[i])][static_cast<std::size_t>(labels[i])];
  }
  std::vector<ClusterLabel> most_frequent;
  for (const auto& row : counts) {
    const auto most = std::max_element(row.begin(), row.end());
    const auto name = static_cast<std::size_t>(most - row.begin());
    most_frequent.push_back({*most > 0 ? names[name] : "", *most});
  }
  return most_frequent;
}

/// Returns the report; "purity" is the share of points whose label is that of their cluster.
nlohmann::ordered_json make_report(const Points& points, const Clustering& result,
                                   const std::vector<std::int64_t>& start_rows,
                                   const std::vector<ClusterLabel>& labels) {
  nlohmann::ordered_json report{
      {"points", points.rows},
      {"columns", points.columns},
      {"clusters", result.clusters},
      {"ranks", points.part.ranks},
      {"start_rows", start_rows},
      {"iterations", result.iterations},
      {"empty_moved", result.empty_moved},
      {"converged", result.converged},
      {"inertia", std::ldexp(result.inertia, -2 * points.fraction_bits)},
      {"purity", nullptr},
      {"counts", result.counts},
      {"labels", nlohmann::ordered_json::array()},
      {"allreduces", result.allreduces},
      {"allreduce_bytes", result.allreduce_bytes},
  };
  std::int64_t right = 0;
  for (const ClusterLabel& label : labels) {
    report["labels"].push_back({{"name", label.name}, {"points", label.points}});
    right += label.points;
  }
  if (!labels.empty()) {
    report["purity"] = static_cast<double>(right) / static_cast<double>(points.rows);
  }
  return report;
}

void print(const nlohmann::ordered_json& report, const std::vector<ClusterLabel>& labels) {
  std::printf("  cluster    points%s\n", labels.empty() ? "" : "   most frequent label");
  for (std::size_t i = 0; i < report["counts"].size(); ++i) {
    const long long count = report["counts"][i];
    std::printf("  %7zu %9lld", i, count);
    if (!labels.empty() && count > 0) {
      std::printf("   %.40s, %.1f %%", labels[i].name.c_str(),
                  100.0 * static_cast<double>(labels[i].points) / static_cast<double>(count));
    }
    std::printf("\n");
  }
  std::printf("\n  %s after %lld iterations\n",
              report["converged"].get<bool>() ? "converged" : "stopped",
              report["iterations"].get<long long>());
  std::printf("  sum of squared distances   %.6g\n", report["inertia"].get<double>());
  if (!labels.empty()) {
    std::printf("  purity                     %.4f\n", report["purity"].get<double>());
  }
  std::printf("  empty clusters moved       %lld\n", report["empty_moved"].get<long long>());
  std::printf("  ranks                      %d\n", report["ranks"].get<int>());
  std::printf("  bytes of an allreduce      %lld, %lld times\n",
              report["allreduce_bytes"].get<long long>(), report["allreduces"].get<long long>());
}

int run(const Options& options) {
  const bool is_first = ronde::rank() == 0;
  if (is_first && !options.json.empty()) example::prepare_file(options.json, "--json");
  const example::Part part{ronde::rank(), ronde::size()};
  example::Table table = example::read_table(options.data, options.format, part);
  check_sizes(options, table);
  const std::vector<std::int32_t> labels = std::move(table.labels);
  const std::vector<std::string> label_names = std::move(table.label_names);
  const Points points = make_points(std::move(table), part);
  if (is_first) {
    std::printf("%s: %lld points of %lld values, %lld clusters\n\n", options.data.c_str(),
                static_cast<long long>(points.rows), static_cast<long long>(points.columns),
                static_cast<long long>(options.clusters));
  }
  Start start = choose_start(points, options.clusters, options.seed);
  Clustering result = cluster(points, std::move(start.centroids), options.iterations);
  const std::vector<std::int32_t> assignments = gather_assignments(points, result);
  if (!is_first) return 0;

  const auto by_cluster = label_clusters(options.clusters, assignments, labels, label_names);
  nlohmann::ordered_json report = make_report(points, result, start.rows, by_cluster);
  print(report, by_cluster);
  for (double& value : result.centroids) value = std::ldexp(value, -points.fraction_bits);
  report["centroids"] = result.centroids;
  report["assignments"] = assignments;
  if (!options.json.empty()) example::write_text(options.json, report.dump(2) + "\n");
  return 0;
}

}  // namespace
}  // namespace kmeans

int main(int argc, char** argv) {
  return example::run_program("kmeans", argc, argv, [](int count, const char* const* words) {
    return kmeans::run(kmeans::parse_options(count, words));
  });
}

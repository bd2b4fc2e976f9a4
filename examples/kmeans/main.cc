// SPDX-License-Identifier: Apache-2.0
// K-means on Ronde's core, on one rank or, started by mpiexec, on many, with the same result.
#include <ronde/ronde.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "common/data/files.h"
#include "common/data/png.h"
#include "common/data/table.h"
#include "common/errors.h"
#include "common/program.h"
#include "exchange.h"
#include "kmeans_options.h"
#include "phases.h"
#include "picture.h"
#include "points.h"
#include "report.h"
#include "start.h"

namespace kmeans {
namespace {

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

void prepare_output(const Options& options) {
  if (ronde::rank() != 0) return;
  example::prepare_folder(options.output, "--output");
  if (!options.json.empty()) example::prepare_file(options.json, "--json");
}

/// The clusters of all points, in the order of the file.
std::vector<std::int32_t> gather_assignments(const Points& points, const Clustering& clustering) {
  const std::vector<std::int32_t> by_rank =
      allgather(clustering.assignments, points.rows, "assignments");
  std::vector<std::int32_t> all(by_rank.size());
  auto next = by_rank.begin();
  for (example::Part part = points.part, of = {0, part.ranks}; of.rank < of.ranks; ++of.rank) {
    for (std::int64_t local = 0; local < of.count(points.rows); ++local) {
      all[static_cast<std::size_t>(of.rank + local * of.ranks)] = *next++;
    }
  }
  return all;
}

void write_assignments(const std::filesystem::path& file,
                       const std::vector<std::int32_t>& assignments) {
  std::string text;
  for (const std::int32_t cluster : assignments) text += std::to_string(cluster) + "\n";
  example::write_text(file, text);
}

/// Returns what to say about it.
std::string draw(const std::filesystem::path& file, const std::vector<double>& centroids,
                 std::int64_t columns) {
  const auto side = square_side(columns);
  if (!side) return "none: a point of " + std::to_string(columns) + " values is no square image";
  const Picture picture = draw_centroids(centroids, *side);
  example::write_png(file, picture.width, picture.height, picture.rgb.data());
  return file.string();
}

void write_results(const Options& options, const std::vector<double>& centroids,
                   const std::vector<std::int32_t>& assignments, const Report& report) {
  if (ronde::rank() != 0) return;
  const std::filesystem::path centroid_file = options.output / "centroids.csv";
  const std::filesystem::path assignment_file = options.output / "assignments.csv";
  example::write_csv(centroid_file, centroids, report.columns);
  write_assignments(assignment_file, assignments);
  const std::string picture = draw(options.output / "centroids.png", centroids, report.columns);
  if (!options.json.empty()) example::write_text(options.json, to_json(report));
  std::printf("\n%s\ncentroids    %s\nassignments  %s\npicture      %s\n", to_text(report).c_str(),
              centroid_file.c_str(), assignment_file.c_str(), picture.c_str());
}

int run(const Options& options) {
  prepare_output(options);
  PhaseTimes times;
  const example::Part part{ronde::rank(), ronde::size()};
  example::Table table = times.measure(
      Phase::Read, [&] { return example::read_table(options.data, options.format, part); });
  check_sizes(options, table);
  const std::vector<std::int32_t> labels = std::move(table.labels);
  const std::vector<std::string> label_names = std::move(table.label_names);
  const Points points = make_points(std::move(table), part);
  if (ronde::rank() == 0) {
    std::printf("%s: %lld points of %lld values, %lld clusters\n", options.data.c_str(),
                static_cast<long long>(points.rows), static_cast<long long>(points.columns),
                static_cast<long long>(options.clusters));
  }
  Start start = times.measure(Phase::Start,
                              [&] { return choose_start(points, options.clusters, options.seed); });
  Clustering clustering = cluster(points, std::move(start.centroids), options.iterations, times);
  const std::vector<std::int32_t> assignments = gather_assignments(points, clustering);

  for (double& value : clustering.centroids) value = std::ldexp(value, -points.fraction_bits);
  const Report report{
      .points = points.rows,
      .columns = points.columns,
      .ranks = part.ranks,
      .start_rows = start.rows,
      .iterations = clustering.iterations,
      .empty_moved = clustering.empty_moved,
      .converged = clustering.converged,
      .inertia = std::ldexp(clustering.inertia, -2 * points.fraction_bits),
      .counts = clustering.counts,
      .labels = label_clusters(options.clusters, assignments, labels, label_names),
      .allreduces = clustering.allreduces,
      .allreduce_bytes = clustering.allreduce_bytes,
      .phases = times.summarize(),
  };
  write_results(options, clustering.centroids, assignments, report);
  return 0;
}

}  // namespace
}  // namespace kmeans

int main(int argc, char** argv) {
  return example::run_program("kmeans", argc, argv, [](int count, const char* const* words) {
    return kmeans::run(kmeans::parse_options(count, words));
  });
}

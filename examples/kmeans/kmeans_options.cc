// SPDX-License-Identifier: Apache-2.0
#include "kmeans_options.h"

#include <CLI/CLI.hpp>
#include <string>

#include "common/data/digits_path.h"
#include "common/errors.h"
#include "common/program.h"

namespace kmeans {
namespace {

constexpr const char* kData = "Points";
constexpr const char* kClustering = "Clustering";
constexpr const char* kOutput = "Output";

void add_options(CLI::App& app, Options& options) {
  CLI::Option* data =
      app.add_option("--data", options.data,
                     "CSV file of numbers, a point a line, plain or compressed by gzip [the "
                     "handwritten digits that scripts/deps.sh fetches, with --labels]")
          ->group(kData);
  app.add_flag("--labels", options.format.labels,
               "The last column is a label, to compare the clusters with")
      ->needs(data)
      ->group(kData);
  app.add_flag("--header", options.format.header, "The first line holds names")
      ->needs(data)
      ->group(kData);
  app.add_option("--clusters", options.clusters, "How many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(kClustering);
  app.add_option("--iterations", options.iterations, "Move the centroids at most so many times")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(kClustering);
  app.add_option("--seed", options.seed, "Of the choice of the first centroids")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(kClustering);
  app.add_option("--output", options.output, "Folder for centroids, assignments and picture")
      ->capture_default_str()
      ->group(kOutput);
  app.add_option("--json", options.json, "Write the report to this file")->group(kOutput);
}

void use_digits(Options& options) {
  options.data = example::digits_path();
  options.format.labels = true;
  if (std::filesystem::exists(options.data)) return;
  throw example::InputError("the handwritten digits are not at " + options.data.string() +
                            ": run scripts/deps.sh, which fetches them, or name a CSV file of your "
                            "own by --data");
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  CLI::App app(
      "Groups points into clusters by k-means. Start it with mpiexec for several ranks; the result "
      "does not depend on their number.",
      "kmeans");
  // The last one counts, so that a script's options can be overridden by what follows.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Options options;
  add_options(app, options);
  example::parse_command_line(app, argc, argv);
  if (options.data.empty()) use_digits(options);
  return options;
}

}  // namespace kmeans

// SPDX-License-Identifier: Apache-2.0
// `ronde grid`: predicts alone, and starts no ranks.
#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

#include "tools/bench/base/report.h"
#include "tools/commands.h"
#include "tools/grid/volume.h"

namespace ronde::tool {
namespace {

struct Options {
  TrainingStep step;
  std::string model, costs;
  bool json = false;
};

LinkCosts read_costs(const std::string& path) {
  std::ifstream file(path);
  const Json rows = Json::parse(file, nullptr, false);
  for (const Json& row : rows.is_array() ? rows : Json::array()) {
    if (!row.is_object() || !row.value("alpha_us", Json()).is_number()) continue;
    return {row.at("alpha_us").get<double>() / 1e6, row.at("beta_ns").get<double>() / 1e9,
            row.at("gamma_ns").get<double>() / 1e9};
  }
  throw UsageError("--costs: \"" + path +
                   "\" has no costs of a link; ranks on two hosts write it: "
                   "ronde bench allreduce --model --backend fabric --json " +
                   path);
}

Json row_of(const Volume& volume, bool has_costs) {
  const Traffic& busiest = *std::ranges::max_element(volume.stages, {}, &Traffic::total);
  return {{"data", volume.division.data},
          {"rows", volume.division.rows},
          {"columns", volume.division.columns},
          {"stages", volume.division.stages},
          {"data_bytes", busiest.data},
          {"tensor_bytes", busiest.tensor},
          {"pipeline_bytes", busiest.pipeline},
          {"bytes", busiest.total()},
          {"ms", has_costs ? Json(volume.seconds * 1e3) : Json()}};
}

int print_divisions(const Options& options) {
  TrainingStep step = options.step;
  step.layers = layers_of(options.model);
  const bool has_costs = !options.costs.empty();
  if (has_costs) step.costs = read_costs(options.costs);
  std::vector<Json> rows;
  for (const Division& division : divisions_of(step)) {
    rows.push_back(row_of(volume_of(step, division), has_costs));
  }
  std::ranges::stable_sort(
      rows, {}, [&](const Json& row) { return row.at(has_costs ? "ms" : "bytes").get<double>(); });
  Report report(options.json ? nullptr : &std::cout);
  std::vector<Column> columns;
  for (const auto& [key, value] : rows.front().items()) {
    columns.push_back({key, key, value.is_number_float() ? 2 : 0});
  }
  report.begin_table(std::move(columns));
  for (Json& row : rows) report.add(std::move(row));
  if (options.json) std::cout << report.rows().dump(2) << '\n';
  if (!std::cout.flush()) throw Error("the output could not be written");
  return EXIT_SUCCESS;
}

}  // namespace

void add_grid(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App& grid = *app.add_subcommand(
      "grid",
      "Predicts what ranks send in a training step, for each division of them into "
      "replicas, parts of tensors, and stages");
  TrainingStep& step = options->step;
  const auto add = [&grid](const char* name, std::size_t& number, std::size_t most,
                           const char* help) {
    return grid.add_option(name, number, help)
        ->check(CLI::Range(std::size_t{1}, most))
        ->capture_default_str();
  };
  constexpr std::size_t kMostRanks = 4096;
  constexpr std::size_t kMostSamples = 100'000;
  add("--ranks", step.ranks, kMostRanks, "How many ranks there are")->required();
  grid.add_option("--model", options->model, "resnet50, edsr, mlp:WIDTH,WIDTH,... or a file")
      ->required();
  add("--ranks-per-host", step.ranks_per_host, kMostRanks, "Neighbours that share a link");
  add("--batch", step.batch, kMostSamples,
      "Samples of a step, of all ranks together; divisions that do not divide them are left out");
  add("--micro-batches", step.micro_batches, kMostSamples,
      "Parts of a replica's samples, with several stages");
  grid.add_option("--costs", options->costs,
                  "What `ronde bench allreduce --model --json FILE` has measured: sorts by time")
      ->check(CLI::ExistingFile);
  grid.add_flag("--json", options->json, "Print the rows as JSON");
  grid.callback([options, &exit_code] {
    exit_code = exit_code_of("ronde grid", [&] { return print_divisions(*options); });
  });
}

}  // namespace ronde::tool

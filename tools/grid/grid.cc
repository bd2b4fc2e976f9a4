// SPDX-License-Identifier: Apache-2.0
// `ronde grid`: predicts alone, and starts no ranks.
#include <algorithm>
#include <memory>
#include <utility>

#include "observe/report/text.h"
#include "tools/bench/base/simulation_costs.h"
#include "tools/commands.h"
#include "tools/grid/volume.h"

namespace ronde::tool {
namespace {

struct Options {
  TrainingStep step;
  std::string model, costs;
};

int print_divisions(const Options& options) {
  TrainingStep step = options.step;
  step.layers = layers_of(options.model);
  const bool has_costs = !options.costs.empty();
  if (has_costs) step.costs = read_link_costs(options.costs);
  std::vector<Volume> volumes;
  for (const Division& division : divisions_of(step)) {
    volumes.push_back(volume_of(step, division));
  }
  std::ranges::stable_sort(volumes, {}, [&](const Volume& volume) {
    return has_costs ? volume.seconds : static_cast<double>(volume.busiest().total());
  });
  Table table({"stages", "data", "rows", "columns", "data bytes", "tensor bytes", "pipeline bytes",
               "bytes", "ms"});
  for (const Volume& volume : volumes) {
    const Traffic busiest = volume.busiest();
    std::vector<std::string> row;
    for (const std::size_t size : volume.division) row.push_back(std::to_string(size));
    for (const auto bytes : {busiest.data, busiest.tensor, busiest.pipeline, busiest.total()}) {
      row.push_back(std::to_string(bytes));
    }
    row.push_back(has_costs ? number_text(volume.seconds * 1e3, 2) : "-");
    table.add(std::move(row));
  }
  table.print(std::cout);
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
  grid.add_option("--model", options->model,
                  "resnet18, resnet50, edsr, edsr-full, mlp:WIDTH,WIDTH,... or a file")
      ->required();
  add("--ranks-per-host", step.ranks_per_host, kMostRanks, "Neighbours that share a link");
  add("--batch", step.batch, kMostSamples,
      "Samples of a step, of all ranks together; divisions that do not divide them are left out");
  add("--micro-batches", step.micro_batches, kMostSamples,
      "Parts of a replica's samples, with several stages");
  grid.add_option("--costs", options->costs,
                  "What `ronde bench allreduce --model --json FILE` has measured: sorts by time");
  grid.callback([options, &exit_code] {
    exit_code = exit_code_of("ronde grid", [&] { return print_divisions(*options); });
  });
}

}  // namespace ronde::tool

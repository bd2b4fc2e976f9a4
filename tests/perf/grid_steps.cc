// SPDX-License-Identifier: Apache-2.0
// What ranks exchange in a step of linear layers, timed for every division of them: to compare with
// what `ronde grid` predicts (tests/perf/grid_link.sh).
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/perf/rounds.h"
#include "tests/support/ranks/requests.h"
#include "tests/tools/grid/grid_mlp.h"
#include "tools/grid/volume.h"

using namespace ronde;
using Clock = std::chrono::steady_clock;

namespace {

/// Returns the time of the slowest rank.
float seconds_of(test::GridMlp& mlp) {
  std::vector<float> seconds(1);
  Request together = test::sum_request(seconds, "together");
  together.op = ReduceOp::Max;
  run(together);
  const auto begin = Clock::now();
  mlp.step();
  seconds[0] = std::chrono::duration<float>(Clock::now() - begin).count();
  run(together);
  return seconds[0];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: grid_steps mlp:WIDTH,WIDTH,... BATCH MICRO_BATCHES ROUNDS\n");
    return 2;
  }
  init({});
  const tool::TrainingStep step{.layers = tool::layers_of(argv[1]),
                                .ranks = static_cast<std::size_t>(size()),
                                .batch = std::stoul(argv[2]),
                                .micro_batches = std::stoul(argv[3])};
  const std::vector<tool::Division> divisions = tool::divisions_of(step);
  std::vector<std::unique_ptr<test::GridMlp>> models;
  std::vector<std::vector<double>> times(divisions.size());
  for (const tool::Division& division : divisions) {
    models.push_back(
        std::make_unique<test::GridMlp>(default_runtime(), step, division, /*computes=*/false));
    models.back()->step();  // names are new, and pages
  }
  for (unsigned long round = std::stoul(argv[4]); round > 0; --round) {
    for (std::size_t i = 0; i < models.size(); ++i) times[i].push_back(seconds_of(*models[i]));
  }
  for (std::size_t i = 0; i < divisions.size() && rank() == 0; ++i) {
    std::printf("grid");
    for (const std::size_t size : divisions[i]) std::printf(" %zu", size);
    std::printf(" %.1f\n", 1e3 * perf::median(times[i]));
  }
  shutdown();
  return 0;
}

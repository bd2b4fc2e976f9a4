// SPDX-License-Identifier: Apache-2.0
// What `ronde grid` predicts against what a network of memory carries for linear layers that train
// on threads as ranks, and the command.
#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <sstream>

#include "ronde/plugin/fabric_backend.h"
#include "tests/support/inproc/memory_network.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/support/ranks/ranks.h"
#include "tests/tools/grid/grid_mlp.h"
#include "tests/tools/ronde_command.h"
#include "tools/bench/base/gradient_lists.h"
#include "tools/grid/volume.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using tool::Division;
using tool::TrainingStep;

TrainingStep step_of(std::size_t ranks) {
  return {.layers = tool::layers_of("mlp:16,64,32,128,64,96,16,24,8"),
          .ranks = ranks,
          .batch = 64,
          .micro_batches = 2};
}

/// Runs a step on ranks over a network, and calls `body` on each.
void train(const Division& division,
           const std::function<void(std::size_t rank, const GridMlp& mlp)>& body) {
  const int ranks = std::accumulate(division.begin(), division.end(), 1, std::multiplies<>());
  const inproc::Group group(ranks);
  const auto network = std::make_shared<inproc::MemoryNetwork>(ranks);
  run_ranks(ranks, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    const auto fabric =
        std::make_shared<SharedFabric>([&](BackendContext&) { return network->fabric(rank); });
    options.backends = {{"fabric", fabric_backend_factory(fabric, {})}};
    Runtime runtime(std::move(options));
    GridMlp mlp(runtime, step_of(8), division, true,
                [&] { return counter_of(runtime, "fabric", "fabric_sent_bytes"); });
    mlp.step();
    body(static_cast<std::size_t>(rank), mlp);
    mlp.remove();
    runtime.shutdown();
  });
}

/// The gradients of one rank that has everything, by layer.
std::vector<GridMlp::Values> undivided_gradients() {
  std::vector<GridMlp::Values> gradients;
  train({1, 1, 1, 1}, [&](std::size_t, const GridMlp& mlp) {
    for (const GridMlp::Layer& layer : mlp.layers()) {
      const float* const begin = &mlp.gradients()[layer.first_gradient];
      gradients.emplace_back(begin, begin + (layer.inputs + 1) * layer.outputs);
    }
  });
  return gradients;
}

void check_gradients(const GridMlp& mlp, const std::vector<GridMlp::Values>& whole) {
  const std::vector<tool::Layer> layers = step_of(8).layers;
  std::size_t number = mlp.first_layer();
  for (const GridMlp::Layer& layer : mlp.layers()) {
    for (std::size_t i = 0; i < (layer.inputs + 1) * layer.outputs; ++i) {
      const std::size_t in = i / layer.outputs, out = layer.first_output + i % layer.outputs;
      const std::size_t row = in < layer.inputs ? layer.first_input + in : layers[number].inputs;
      const float expected = whole[number][row * layers[number].outputs + out];
      const float got = mlp.gradients()[layer.first_gradient + i];
      check(std::abs(got - expected) <= 1e-4F * (1 + std::abs(expected)),
            "gradient of layer " + std::to_string(number) + ": " + std::to_string(got) + " is " +
                std::to_string(expected));
    }
    ++number;
  }
}

TEST_CASE("grid predicts the bytes that each rank sends, for every division of 4 and 8 ranks") {
  const auto whole = undivided_gradients();
  const std::size_t ranks = GENERATE(4U, 8U);
  const TrainingStep step = step_of(ranks);
  const std::vector<Division> divisions = tool::divisions_of(step);
  REQUIRE(divisions.size() == (ranks == 4 ? 10 : 20));  // ways to write 2^n as four factors
  for (const Division& division : divisions) {
    const tool::Volume volume = tool::volume_of(step, division);
    REQUIRE(volume.stages.size() == division[tool::kStages]);
    train(division, [&](std::size_t rank, const GridMlp& mlp) {
      const tool::Traffic& predicted = volume.stages[rank * volume.stages.size() / ranks];
      const std::string what =
          " bytes of rank " + std::to_string(rank) + ", " + GridMlp::name_of(division);
      check_equal(mlp.sent_bytes.data, predicted.data, "data" + what);
      check_equal(mlp.sent_bytes.tensor, predicted.tensor, "tensor" + what);
      check_equal(mlp.sent_bytes.pipeline, predicted.pipeline, "pipeline" + what);
      check(predicted.total() > 0, "something is sent");
      check_gradients(mlp, whole);
    });
  }
}

TEST_CASE("grid predicts the volume of Tensor3D's equation for a layer, and the time of a ring") {
  // 2 m (n - 1) / n bytes in 2 (n - 1) messages for 8 MiB among 4 ranks, which is a multiple of the
  // largest call. Two neighbours on a host: one of them sends to the other host.
  const std::size_t width = 1024;
  TrainingStep step{.layers = {{.inputs = width, .outputs = 2 * width, .vectors = 0}}, .ranks = 4};
  step.costs = {.alpha = 1e-3, .beta = 1e-8, .gamma = 0};
  step.ranks_per_host = GENERATE(1U, 2U, 4U);
  const tool::Volume volume = tool::volume_of(step, {1, 4, 1, 1});
  CHECK(volume.stages.at(0).data == (std::size_t{12} << 20));
  CHECK(volume.stages.at(0).tensor == 0);
  const double expected = 4 * 6 * 1e-3 + static_cast<double>(12 << 20) * 1e-8;
  CHECK(volume.seconds == Approx(step.ranks_per_host == 4 ? 0 : expected));
}

TEST_CASE("grid shares the link of a host among its ranks") {
  // Replicas on two hosts of two ranks: 0 with 2, and 1 with 3, both over one link.
  TrainingStep step{.layers = {{.inputs = 1024, .outputs = 2048}}, .ranks = 4};
  step.costs = {.alpha = 0, .beta = 1e-8, .gamma = 0};
  const double alone = tool::volume_of(step, {1, 2, 1, 2}).seconds;
  step.ranks_per_host = 2;
  CHECK(tool::volume_of(step, {1, 2, 1, 2}).seconds == Approx(2 * alone));
}

TEST_CASE("grid lets micro-batches pass the stages forward, and then back") {
  // Three stages on hosts of their own: 4 samples of 100 numbers are 1.6 kB over each of two links,
  // 1.6 ms a link. The last of 5 micro-batches arrives after 2 + 4 of these, in both directions.
  const tool::Layer layer{.inputs = 100, .outputs = 100};
  TrainingStep step{.layers = {layer, layer, layer}, .ranks = 3, .batch = 20, .micro_batches = 5};
  step.costs = {.alpha = 0, .beta = 1e-6, .gamma = 0};
  const tool::Volume volume = tool::volume_of(step, {3, 1, 1, 1});
  CHECK(volume.seconds == Approx(2 * 6 * 1.6e-3));
  CHECK(volume.stages.at(0).pipeline == 5 * 1600);
  CHECK(volume.stages.at(1).pipeline == 2 * 5 * 1600);
}

TEST_CASE("grid has all parameters of the models") {
  // Torchvision's ResNets and the EDSR of examples/edsr have these numbers.
  const std::vector<std::pair<std::string, std::size_t>> models = {{"resnet18", 11'689'512},
                                                                   {"resnet50", 25'557'032},
                                                                   {"edsr", 1'369'859},
                                                                   {"edsr-full", 40'729'603}};
  for (const auto& [model, expected] : models) {
    std::size_t parameters = 0;
    for (const tool::Layer& layer : tool::layers_of(model)) {
      parameters += (layer.kernel * layer.inputs + layer.vectors) * layer.outputs;
    }
    CHECK(parameters == expected);
    CHECK(tool::gradient_list(model).elements() == expected);
  }
  // Multiplications of a forward pass, as torchvision states them.
  for (const auto& [model, expected] : {std::pair("resnet18", 1.814e9), {"resnet50", 4.089e9}}) {
    double multiplications = 0;
    for (const tool::Layer& layer : tool::layers_of(model)) {
      multiplications += double(layer.kernel * layer.inputs * layer.outputs * layer.places_out);
    }
    CHECK(multiplications == Approx(expected).epsilon(1e-3));
  }
}

TEST_CASE("ronde grid sorts divisions by bytes, or by time where costs are given") {
  const TemporaryFolder folder;
  write_bytes(folder / "costs.json", R"([{"alpha_us": 50, "beta_ns": 80, "gamma_ns": 1}])");
  write_bytes(folder / "layers", "64 256\n256 64\n64 32\n32 8\n");
  const std::vector<std::string> of_mlp = {"grid", "--ranks", "4", "--model", "mlp:64,256,64,32,8"};
  std::vector<std::string> arguments = {"grid", "--ranks", "4", "--model", folder / "layers"};
  CHECK(ended(0, run_command(arguments)).out == ended(0, run_command(of_mlp)).out);
  constexpr std::size_t kBytes = 7, kMs = 8;
  for (const std::size_t key : {kBytes, kMs}) {
    std::istringstream lines(ended(0, run_command(arguments)).out);
    std::string line;
    std::getline(lines, line);
    std::vector<double> sorted;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      const std::vector<std::string> row{std::istream_iterator<std::string>(words), {}};
      REQUIRE(row.size() == kMs + 1);
      CHECK((row[kMs] == "-") == (key == kBytes));
      sorted.push_back(std::stod(row[key]));
      // Replicas of 35,432 parameters send 2 (4 - 1) / 4 of their bytes.
      if (row[1] == "4") CHECK((row[4] == "212592" && row[kBytes] == "212592"));
    }
    CHECK(sorted.size() == 10);
    CHECK(std::is_sorted(sorted.begin(), sorted.end()));
    arguments.insert(arguments.end(), {"--costs", folder / "costs.json", "--ranks-per-host", "2"});
  }
}

TEST_CASE("ronde grid says what is wrong with its arguments") {
  const TemporaryFolder folder;
  write_bytes(folder / "layers", "64 256\n256 64 9 100\n");
  write_bytes(folder / "costs", R"([{"alpha_us": 50, "gamma_ns": 1}])");
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--model", folder / "layers"}, "line 2: a layer is"},
      {{"--model", "/none"}, "neither"},
      {{"--model", "mlp:8"}, "two or more widths"},
      {{"--model", "mlp:8,x"}, "\"x\" is no number"},
      {{"--model", "mlp:8,200001"}, "no number from 1 to 200000"},
      {{"--model", "edsr", "--costs", folder / "layers"}, "has no costs of a link"},
      {{"--model", "edsr", "--costs", folder / "costs"}, "has no costs of a link"},
      {{"--model", "edsr", "--costs", "/none"}, "has no costs of a link"},
      {{"--model", "edsr", "--ranks-per-host", "0"}, "--ranks-per-host"},
      {{"--model", "edsr", "--batch", "0"}, "--batch"}};
  for (const auto& [arguments, problem] : wrong) {
    std::vector<std::string> all = {"grid", "--ranks", "4"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    CHECK_THAT(ended(2, run_command(all)).err, Catch::Contains(problem));
  }
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// What `ronde grid` predicts against what a network of memory carries for a perceptron that trains
// on threads as ranks, and the command.
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

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

const std::vector<std::size_t> kWidths = {16, 64, 32, 128, 64, 96, 16, 24, 8};
constexpr std::size_t kBatch = 64;
constexpr std::size_t kMicroBatches = 2;

TrainingStep step_of(std::size_t ranks) {
  TrainingStep step{.ranks = ranks, .batch = kBatch, .micro_batches = kMicroBatches};
  for (std::size_t i = 1; i < kWidths.size(); ++i) {
    step.layers.push_back({.inputs = kWidths[i - 1], .outputs = kWidths[i]});
  }
  return step;
}

std::string text_of(const Division& division) {
  return std::to_string(division.data) + " x (" + std::to_string(division.rows) + " x " +
         std::to_string(division.columns) + ") x " + std::to_string(division.stages);
}

/// Runs a step on ranks over a network, and calls `body` on each.
void train(const Division& division, std::size_t micro_batches,
           const std::function<void(std::size_t rank, const GridMlp& mlp)>& body) {
  const std::vector<int> sizes = {static_cast<int>(division.stages),
                                  static_cast<int>(division.data), static_cast<int>(division.rows),
                                  static_cast<int>(division.columns)};
  const int ranks = sizes[0] * sizes[1] * sizes[2] * sizes[3];
  const inproc::Group group(ranks);
  const auto network = std::make_shared<inproc::MemoryNetwork>(ranks);
  run_ranks(ranks, [&](int rank) {
    RuntimeOptions options = options_of(group, rank);
    const auto fabric =
        std::make_shared<SharedFabric>([&](BackendContext&) { return network->fabric(rank); });
    options.backends = {{"fabric", fabric_backend_factory(fabric, {})}};
    Runtime runtime(std::move(options));
    GridMlp mlp(runtime, sizes, kWidths, kBatch, micro_batches, true,
                [&] { return counter_of(runtime, "fabric", "fabric_sent_bytes"); });
    mlp.step();
    body(static_cast<std::size_t>(rank), mlp);
    mlp.remove();
    runtime.shutdown();
  });
}

/// The gradients of one rank that has everything, by layer.
std::vector<std::vector<float>> undivided_gradients() {
  std::vector<std::vector<float>> gradients;
  train({}, 1, [&](std::size_t, const GridMlp& mlp) {
    auto at = mlp.gradients().begin();
    for (const GridMlp::Layer& layer : mlp.layers()) {
      const auto end = at + static_cast<std::ptrdiff_t>((layer.inputs + 1) * layer.outputs);
      gradients.emplace_back(at, end);
      at = end;
    }
  });
  return gradients;
}

void check_gradients(const GridMlp& mlp, const std::vector<std::vector<float>>& whole) {
  auto got = mlp.gradients().begin();
  for (std::size_t i = 0; i < mlp.layers().size(); ++i) {
    const GridMlp::Layer& layer = mlp.layers()[i];
    const std::size_t number = mlp.first_layer() + i;
    for (std::size_t in = 0; in <= layer.inputs; ++in) {
      const std::size_t row = in < layer.inputs ? layer.first_input + in : kWidths[number];
      for (std::size_t out = 0; out < layer.outputs; ++out, ++got) {
        const float expected = whole[number][row * kWidths[number + 1] + layer.first_output + out];
        check(std::abs(*got - expected) <= 1e-4F * (1 + std::abs(expected)),
              "gradient of layer " + std::to_string(number) + ": " + std::to_string(*got) + " is " +
                  std::to_string(expected));
      }
    }
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
    REQUIRE(volume.stages.size() == division.stages);
    train(division, kMicroBatches, [&](std::size_t rank, const GridMlp& mlp) {
      const tool::Traffic& predicted = volume.stages[rank * division.stages / ranks];
      const std::string what = " bytes of rank " + std::to_string(rank) + ", " + text_of(division);
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
  const tool::Volume volume = tool::volume_of(step, {.data = 4});
  CHECK(volume.stages.at(0).data == (std::size_t{12} << 20));
  CHECK(volume.stages.at(0).tensor == 0);
  const double expected = 4 * 6 * 1e-3 + static_cast<double>(12 << 20) * 1e-8;
  CHECK(volume.seconds == Approx(step.ranks_per_host == 4 ? 0 : expected));
}

TEST_CASE("grid shares the link of a host among its ranks") {
  // Replicas on two hosts of two ranks: 0 with 2, and 1 with 3, both over one link.
  TrainingStep step{.layers = {{.inputs = 1024, .outputs = 2048}}, .ranks = 4};
  step.costs = {.alpha = 0, .beta = 1e-8, .gamma = 0};
  const double alone = tool::volume_of(step, {.data = 2, .columns = 2}).seconds;
  step.ranks_per_host = 2;
  CHECK(tool::volume_of(step, {.data = 2, .columns = 2}).seconds == Approx(2 * alone));
}

TEST_CASE("grid lets micro-batches pass the stages forward, and then back") {
  // Three stages on hosts of their own: 4 samples of 100 numbers are 1.6 kB over each of two links,
  // 1.6 ms a link. The last of 5 micro-batches arrives after 2 + 4 of these, in both directions.
  const tool::Layer layer{.inputs = 100, .outputs = 100};
  TrainingStep step{.layers = {layer, layer, layer}, .ranks = 3, .batch = 20, .micro_batches = 5};
  step.costs = {.alpha = 0, .beta = 1e-6, .gamma = 0};
  const tool::Volume volume = tool::volume_of(step, {.stages = 3});
  CHECK(volume.seconds == Approx(2 * 6 * 1.6e-3));
  CHECK(volume.stages.at(0).pipeline == 5 * 1600);
  CHECK(volume.stages.at(1).pipeline == 2 * 5 * 1600);
}

TEST_CASE("grid has all parameters of the models") {
  for (const std::string model : {"resnet50", "edsr"}) {
    std::size_t parameters = 0;
    for (const tool::Layer& layer : tool::layers_of(model)) {
      parameters += (layer.kernel * layer.inputs + layer.vectors) * layer.outputs;
    }
    CHECK(parameters == tool::gradient_list(model).elements());
  }
}

TEST_CASE("ronde grid sorts divisions by bytes, or by time where costs are given") {
  const TemporaryFolder folder;
  const std::string costs = (folder.path() / "costs.json").string();
  std::ofstream(costs) << R"([{"alpha_us": null}, {"alpha_us": 50, "beta_ns": 80, "gamma_ns": 1}])";
  const std::string layers = (folder.path() / "layers").string();
  std::ofstream(layers) << "64 256\n256 64\n64 32\n32 8\n";
  std::vector<std::string> arguments = {"grid", "--ranks", "4", "--model", layers};
  const std::string table = ended(0, run_command(arguments)).out;
  CHECK(std::count(table.begin(), table.end(), '\n') == 11);
  arguments.push_back("--json");
  for (const std::string key : {"bytes", "ms"}) {
    const auto rows = nlohmann::json::parse(ended(0, run_command(arguments)).out);
    REQUIRE(rows.size() == 10);
    for (std::size_t i = 1; i < rows.size(); ++i) CHECK(rows[i - 1].at(key) <= rows[i].at(key));
    CHECK(rows[0].at("ms").is_null() == (key == "bytes"));
    arguments.insert(arguments.end(), {"--costs", costs, "--ranks-per-host", "2"});
  }
  arguments = {"grid", "--ranks", "4", "--model", "mlp:64,256,64,32,8", "--json"};
  const auto same =
      ended(0, run_command({"grid", "--ranks", "4", "--model", layers, "--json"})).out;
  CHECK(ended(0, run_command(arguments)).out == same);
}

TEST_CASE("ronde grid says what is wrong with its arguments") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "layers").string();
  std::ofstream(file) << "64 256\n256 64 9 100\n";
  const std::string directory = folder.path().string();
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--model", file}, "line 2: a layer is"},
      {{"--model", "/none"}, "neither"},
      {{"--model", "mlp:8"}, "two or more widths"},
      {{"--model", "mlp:8,x"}, "\"x\" is no number"},
      {{"--model", "mlp:8,200001"}, "no number from 1 to 200000"},
      {{"--model", "edsr", "--costs", file}, "has no costs of a link"},
      {{"--model", "edsr", "--costs", directory}, "--costs"},
      {{"--model", "edsr", "--ranks-per-host", "0"}, "--ranks-per-host"},
      {{"--model", "edsr", "--batch", "0"}, "--batch"}};
  for (const auto& [arguments, problem] : wrong) {
    std::vector<std::string> all = {"grid", "--ranks", "4"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    CHECK_THAT(ended(2, run_command(all)).err, Catch::Contains(problem));
  }
}

}  // namespace

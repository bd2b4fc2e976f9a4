// SPDX-License-Identifier: Apache-2.0
#include "training/checkpoint.h"

#include <catch2/catch.hpp>
#include <limits>
#include <map>

#include "common/checksum.h"
#include "tests/examples/edsr/support.h"

namespace edsr {
namespace {

using Catch::Contains;
using example::parameter_checksum;
using testing::input_error;
using testing::TemporaryFolder;

constexpr Position kPosition{
    .step = 12, .epoch = 3, .step_in_epoch = 2, .seconds = 4.5, .loss_first = 0.25};

RunConfig make_config() {
  return {.network = {.blocks = 1, .features = 4, .scale = 2, .residual_scale = 0.1},
          .batch = 8,
          .patch = 12,
          .samples = 64,
          .seed = std::numeric_limits<std::uint64_t>::max()};
}

/// A network, its optimizer and some steps behind them.
struct Run {
  explicit Run(std::uint64_t seed, int steps = 3) {
    torch::manual_seed(seed);
    network = Edsr(make_config().network);
    adam = std::make_unique<torch::optim::Adam>(network->parameters(), 1e-2);
    for (int i = 0; i < steps; ++i) step();
  }
  void step() {
    adam->zero_grad();
    network->forward(torch::full({1, 3, 6, 6}, 0.5)).square().mean().backward();
    adam->step();
  }

  Edsr network{nullptr};
  std::unique_ptr<torch::optim::Adam> adam;
};

std::string load_error(const std::filesystem::path& path, const RunConfig& config = make_config()) {
  Run run(99, 0);
  return input_error([&] { load_checkpoint(path, run.network, *run.adam, config); });
}

void save(const std::filesystem::path& path, const Run& run) {
  save_checkpoint(path, run.network, *run.adam, kPosition, make_config());
}

}  // namespace

TEST_CASE("a checkpoint brings back network, optimizer and position") {
  const TemporaryFolder folder;
  Run saved(1);
  save(folder / "c.pt", saved);
  Run loaded(2, 0);
  const Position position =
      load_checkpoint(folder / "c.pt", loaded.network, *loaded.adam, make_config());
  CHECK(position.step == 12);
  CHECK(position.epoch == 3);
  CHECK(position.step_in_epoch == 2);
  CHECK(position.seconds == 4.5);
  CHECK(position.loss_first == 0.25);
  CHECK(parameter_checksum(*loaded.network) == parameter_checksum(*saved.network));
  // Adam's moments are there too, or the next step would be another.
  saved.step();
  loaded.step();
  CHECK(parameter_checksum(*loaded.network) == parameter_checksum(*saved.network));
}

TEST_CASE("a truncated checkpoint is refused wherever it is cut") {
  const TemporaryFolder folder;
  save(folder / "c.pt", Run(1));
  const auto percent = GENERATE(as<std::size_t>{}, 0, 1, 30, 60, 90, 99);
  CAPTURE(percent);
  testing::cut_file(folder / "c.pt", percent);
  CHECK_THAT(load_error(folder / "c.pt"),
             Contains((folder / "c.pt").string()) && Contains("truncated"));
}

TEST_CASE("what is no checkpoint of this program is refused") {
  const TemporaryFolder folder;
  testing::write_bytes(folder / "bytes.pt", std::string(5000, 'x'));
  torch::save(Run(1).network, (folder / "net.pt").string());
  torch::save(torch::ones({3}), (folder / "tensor.pt").string());
  for (const auto& [name, reason] : std::map<std::string, std::string>{
           {"none.pt", (folder / "none.pt").string() + " does not exist"},
           {"bytes.pt", "no LibTorch archive"},
           {"net.pt", "no checkpoint of this program"},
           {"tensor.pt", "no checkpoint of this program"}}) {
    CHECK_THAT(load_error(folder / name), Contains(reason));
  }
}

TEST_CASE("a checkpoint of a differing run is refused and the difference named") {
  const TemporaryFolder folder;
  save(folder / "c.pt", Run(1));
  CHECK(RunConfig::from_json(make_config().to_json()).network == make_config().network);
  CHECK(load_error(folder / "c.pt").empty());
  const std::map<std::string, void (*)(RunConfig&)> changes = {
      {"batch 8 there, 16 here", [](RunConfig& c) { c.batch = 16; }},
      {"patch 12 there, 9 here", [](RunConfig& c) { c.patch = 9; }},
      {"seed 18446744073709551615 there, 6 here", [](RunConfig& c) { c.seed = 6; }},
      {"64 there, 72 here", [](RunConfig& c) { c.samples = 72; }},
      {"network: 1 blocks x 4 features", [](RunConfig& c) { c.network.blocks = 2; }},
      {"2 blocks x 4 features", [](RunConfig& c) { c.network.blocks = 2; }}};
  for (const auto& [difference, change] : changes) {
    RunConfig config = make_config();
    change(config);
    CHECK_THAT(load_error(folder / "c.pt", config), Contains(difference));
  }
}

}  // namespace edsr

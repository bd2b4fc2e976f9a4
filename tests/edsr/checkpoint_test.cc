// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.h"

#include <catch2/catch.hpp>
#include <functional>

#include "common/checksum.h"
#include "support.h"

namespace edsr {
namespace {

using Catch::Contains;
using example::parameter_checksum;
using testing::input_error;
using testing::TemporaryFolder;

constexpr Position kPosition{
    .step = 12, .epoch = 3, .step_in_epoch = 2, .seconds = 4.5, .loss_first = 0.25};

RunConfig make_config() {
  return {.network = {.blocks = 1, .features = 4, .scale = 2},
          .batch = 8,
          .patch = 12,
          .samples = 64,
          .seed = 5};
}

/// A network, its optimiser and some steps behind them.
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

TEST_CASE("a checkpoint brings back network, optimiser and position") {
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
  CHECK_THAT(load_error(folder / "none.pt"),
             Contains("does not exist") && Contains((folder / "none.pt").string()));
  testing::write_bytes(folder / "bytes.pt", std::string(5000, 'x'));
  CHECK_THAT(load_error(folder / "bytes.pt"), Contains("no LibTorch archive"));
  torch::save(Run(1).network, (folder / "net.pt").string());
  CHECK_THAT(load_error(folder / "net.pt"), Contains("no checkpoint of this program"));
  torch::save(torch::ones({3}), (folder / "tensor.pt").string());
  CHECK_THAT(load_error(folder / "tensor.pt"), Contains("no checkpoint of this program"));
}

TEST_CASE("a checkpoint of a differing run is refused and the difference named") {
  const TemporaryFolder folder;
  save(folder / "c.pt", Run(1));
  const auto differing = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig config = make_config();
    change(config);
    return load_error(folder / "c.pt", config);
  };
  CHECK(differing([](RunConfig&) {}).empty());
  CHECK_THAT(differing([](RunConfig& c) { c.batch = 16; }), Contains("batch 8 there, 16 here"));
  CHECK_THAT(differing([](RunConfig& c) { c.patch = 9; }), Contains("patch 12 there, 9 here"));
  CHECK_THAT(differing([](RunConfig& c) { c.seed = 6; }), Contains("seed 5 there, 6 here"));
  CHECK_THAT(differing([](RunConfig& c) { c.samples = 72; }), Contains("64 there, 72 here"));
  CHECK_THAT(differing([](RunConfig& c) { c.network.blocks = 2; }),
             Contains("1 blocks x 4 features") && Contains("2 blocks x 4 features"));
}

TEST_CASE("a configuration survives its JSON") {
  RunConfig config = make_config();
  config.network.residual_scale = 0.1;
  config.seed = 18446744073709551615U;
  const RunConfig copy = RunConfig::from_json(config.to_json());
  CHECK(copy.network == config.network);
  CHECK(copy.seed == config.seed);
  CHECK(copy.samples == config.samples);
}

}  // namespace edsr

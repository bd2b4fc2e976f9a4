// SPDX-License-Identifier: Apache-2.0
#include "edsr_options.h"

#include <CLI/Error.hpp>
#include <catch2/catch.hpp>
#include <vector>

#include "train.h"

namespace edsr {
namespace {

using Catch::Contains;

Options parse_alone(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "edsr");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

Options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"--data", "photos"});
  return parse_alone(arguments);
}

}  // namespace

TEST_CASE("presets are the published sizes; options override them and earlier ones") {
  const Options tiny = parse({"--preset", "tiny"});
  CHECK(tiny.max_side == 1280);
  CHECK(tiny.batch == 8);
  CHECK(tiny.network == EdsrOptions{.blocks = 4, .features = 32});
  const Options baseline = parse({"--preset", "baseline"});
  CHECK(baseline.network == EdsrOptions{.blocks = 16, .features = 64});
  CHECK(baseline.learning_rate == 1e-4);
  CHECK(baseline.patch == 48);
  CHECK(baseline.max_side == 0);
  CHECK(baseline.batch == 16);
  const Options full = parse({"--preset", "full", "--scale", "4"});
  CHECK(full.network ==
        EdsrOptions{.blocks = 32, .features = 256, .scale = 4, .residual_scale = 0.1});

  CHECK(parse({"--blocks", "7", "--preset", "full"}).network.blocks == 7);
  CHECK(parse({"--preset", "full", "--blocks", "7"}).network.features == 256);
  CHECK(parse({"--data", "more"}).data.size() == 2);
  CHECK(parse({"--validation", "a", "--validation", "b"}).validation.size() == 2);
  CHECK(parse({"--batch", "4", "--batch", "8"}).batch == 8);
  CHECK(parse({}).minutes == 3);
  CHECK(parse({"--steps", "5"}).minutes == 0);
}

TEST_CASE("nonsense on the command line is refused") {
  CHECK_THROWS_AS(parse_alone({}), CLI::ParseError);
  const std::vector<const char*> wrong[] = {
      {"--batch", "0"},  {"--batch", "many"}, {"--scale", "5"}, {"--preset", "huge"},
      {"--steps", "-3"}, {"--seed", "-1"},    {"--lr", "0"},    {"--unknown"}};
  for (const auto& arguments : wrong) {
    INFO(arguments.front());
    CHECK_THROWS_AS(parse(arguments), CLI::ParseError);
  }
}

TEST_CASE("a synthetic benchmark has a size of its own, and options of its own") {
  const Options options = parse_alone({"--synthetic"});
  CHECK(options.network == EdsrOptions{.blocks = 16, .features = 64});
  CHECK(options.benchmark.batch_size == 4);
  CHECK(parse_alone({"--no-distributed"}).synthetic);
  const Options tiny = parse_alone({"--efficiency", "--preset", "tiny", "--json", "x"});
  CHECK(tiny.synthetic);
  CHECK(tiny.network.features == 32);
  CHECK(tiny.benchmark.json == "x");
  CHECK_FALSE(parse({}).synthetic);
  CHECK(parse({"--amp", "--checkpoint", "x", "--resume"}).benchmark.resume);

  CHECK_THROWS_WITH(parse({"--efficiency"}), Contains("--synthetic excludes --data"));
  CHECK_THROWS_WITH(parse_alone({"--synthetic", "--batch", "8"}), Contains("excludes --batch"));
  CHECK_THROWS_WITH(parse({"--num-iters", "8"}), Contains("--num-iters requires --synthetic"));
  CHECK_THROWS_WITH(parse_alone({"--synthetic", "--json", "x"}), Contains("requires --efficiency"));
}

TEST_CASE("the learning rate falls by steps") {
  const Options options = parse({"--lr", "8", "--lr-halve-every", "10"});
  CHECK(learning_rate(options, 9) == 8);
  CHECK(learning_rate(options, 10) == 4);
  CHECK(learning_rate(options, 29) == 2);
  CHECK(learning_rate(parse({"--lr", "8"}), 500) == 4);
  CHECK(learning_rate(parse({"--preset", "full", "--lr", "8"}), 199'999) == 8);
}

}  // namespace edsr

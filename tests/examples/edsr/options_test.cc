// SPDX-License-Identifier: Apache-2.0
#include "edsr_options.h"

#include <CLI/Error.hpp>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "training/schedule.h"

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

Schedule schedule(std::vector<const char*> arguments) {
  return Schedule(parse(arguments));
}

}  // namespace

TEST_CASE("the presets are the published sizes") {
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
}

TEST_CASE(
    "options override presets and earlier ones, --data adds up, and the default budget is three "
    "minutes") {
  CHECK(parse({"--blocks", "7", "--preset", "full"}).network.blocks == 7);
  CHECK(parse({"--preset", "full", "--blocks", "7"}).network.features == 256);
  CHECK(parse({"--preset", "baseline", "--lr", "0.5"}).learning_rate == 0.5);
  CHECK(parse({"--residual-scale", "0.3"}).network.residual_scale == 0.3);
  CHECK(parse({"--patch", "20"}).patch == 20);
  CHECK(parse({"--data", "more"}).data.size() == 2);
  CHECK(parse({"--validation", "a", "--validation", "b"}).validation.size() == 2);
  CHECK(parse({"--batch", "4", "--batch", "8"}).batch == 8);
  CHECK(parse({}).minutes == 3);
  CHECK(parse({"--steps", "5"}).minutes == 0);
  CHECK(parse({"--minutes", "0.5"}).minutes == 0.5);
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

TEST_CASE("a synthetic benchmark needs no photographs and has a size of its own") {
  const Options options = parse_alone({"--synthetic"});
  CHECK(options.network == EdsrOptions{.blocks = 16, .features = 64});
  CHECK(options.patch == 48);
  CHECK(options.benchmark.batch_size == 4);
  CHECK(parse_alone({"--no-distributed"}).synthetic);
  const Options tiny = parse_alone({"--efficiency", "--preset", "tiny", "--json", "x"});
  CHECK(tiny.synthetic);
  CHECK(tiny.network.features == 32);
  CHECK(tiny.benchmark.json == "x");
  CHECK_FALSE(parse({}).synthetic);
}

TEST_CASE("training and benchmark refuse each other's options") {
  CHECK_THROWS_WITH(parse({"--efficiency"}), Contains("--synthetic excludes --data"));
  CHECK_THROWS_WITH(parse_alone({"--synthetic", "--batch", "8"}), Contains("excludes --batch"));
  CHECK_THROWS_WITH(parse_alone({"--efficiency", "--steps", "8"}), Contains("excludes --steps"));
  CHECK_THROWS_WITH(parse({"--num-iters", "8"}), Contains("--num-iters requires --synthetic"));
  CHECK_THROWS_WITH(parse_alone({"--synthetic", "--json", "x"}), Contains("requires --efficiency"));
  CHECK_THROWS_WITH(parse_alone({"--synthetic", "--fp16-allreduce", "--no-distributed"}),
                    Contains("--fp16-allreduce excludes"));
}

TEST_CASE("training ends with its budget, of two budgets with the first to be used") {
  const Schedule steps = schedule({"--steps", "10"});
  CHECK_FALSE(steps.finished(9, 1e6));
  CHECK(steps.finished(10, 0));
  const Schedule minutes = schedule({"--minutes", "2"});
  CHECK_FALSE(minutes.finished(1'000'000, 119.9));
  CHECK(minutes.finished(1, 120));
  const Schedule both = schedule({"--minutes", "2", "--steps", "10"});
  CHECK(both.finished(10, 0));
  CHECK(both.finished(0, 120));
  CHECK_FALSE(both.finished(9, 119));
}

TEST_CASE("the learning rate falls by steps, whatever the budget: a slow machine keeps it longer") {
  for (const auto& [name, budget] :
       std::map<const char*, const char*>{{"--steps", "100"}, {"--minutes", "2"}}) {
    const Schedule every = schedule({name, budget, "--lr", "8", "--lr-halve-every", "10"});
    CHECK(every.learning_rate(9) == 8);
    CHECK(every.learning_rate(10) == 4);
    CHECK(every.learning_rate(29) == 2);
  }
  CHECK(schedule({"--lr", "8"}).learning_rate(499) == 8);
  CHECK(schedule({"--lr", "8"}).learning_rate(500) == 4);
  CHECK(schedule({"--preset", "full", "--lr", "8"}).learning_rate(199'999) == 8);
}

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
#include "workload.h"

#include <CLI/Error.hpp>
#include <catch2/catch.hpp>
#include <vector>

namespace resnet {
namespace {

Options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "resnet_synthetic");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

TEST_CASE("the defaults are those of Horovod's benchmark, and every option reaches its place") {
  const Options defaults = parse({});
  CHECK(defaults.model == "resnet50");
  CHECK(defaults.image_size == 224);
  CHECK(defaults.benchmark.batch_size == 32);
  CHECK(defaults.benchmark.num_warmup_batches == 10);
  CHECK(defaults.benchmark.num_batches_per_iter == 10);
  CHECK(defaults.benchmark.num_iters == 10);
  CHECK_FALSE(defaults.benchmark.no_distributed);
  CHECK(defaults.benchmark.device == "cpu");

  const Options options =  // of two --batch-size the last counts
      parse({"--image-size", "64", "--batch-size", "9", "--batch-size", "4", "--num-warmup-batches",
             "0", "--num-batches-per-iter", "5", "--device", "cuda", "--efficiency"});
  CHECK(options.image_size == 64);
  CHECK(options.benchmark.batch_size == 4);
  CHECK(options.benchmark.num_warmup_batches == 0);
  CHECK(options.benchmark.num_batches_per_iter == 5);
  CHECK(options.benchmark.efficiency);
  CHECK(options.benchmark.device == "cuda");
}

TEST_CASE("nonsense and what cannot be done are refused in words that help") {
  struct Row {
    std::vector<const char*> arguments;
    const char* words;
  };
  for (const Row& row :
       {Row{{"--model", "resnet51"}, "resnet50"}, Row{{"--image-size", "0"}, "--image-size"},
        Row{{"--batch-size", "0"}, "--batch-size"}, Row{{"--batch-size", "many"}, "--batch-size"},
        Row{{"--num-iters", "0"}, "--num-iters"},
        Row{{"--num-batches-per-iter", "-1"}, "--num-batches-per-iter"},
        Row{{"--num-warmup-batches", "-1"}, "--num-warmup-batches"},
        Row{{"--batch-size", "1", "--image-size", "32"}, "use at least 2"},
        Row{{"--fp16-allreduce", "--no-distributed"}, "--fp16-allreduce excludes"},
        Row{{"--efficiency", "--no-distributed"}, "--efficiency excludes --no-distributed"},
        Row{{"--device", "tpu"}, "--device"}, Row{{"--resume"}, "--resume requires --checkpoint"},
        Row{{"--checkpoint", "x", "--efficiency"}, "--checkpoint excludes --efficiency"},
        Row{{"--json", "x"}, "--json requires --efficiency"}, Row{{"--unknown"}, "--unknown"}}) {
    INFO(row.words);
    CHECK_THROWS_AS(parse(row.arguments), CLI::ParseError);
    CHECK_THROWS_WITH(parse(row.arguments), Catch::Contains(row.words));
  }
  CHECK_NOTHROW(parse({"--batch-size", "1", "--image-size", "33"}));
}

TEST_CASE("the efficiency is the ratio of the medians, with the range of the rounds") {
  const auto odd = example::summarize({{100, 90}, {200, 100}, {110, 99}});
  CHECK(odd.median.step_ms == 110);
  CHECK(odd.median.step_ms_unconnected == 99);
  CHECK(odd.median.efficiency() == Approx(0.9));
  CHECK(odd.lowest == Approx(0.5));
  CHECK(odd.highest == Approx(0.9));
  CHECK(example::summarize({{100, 90}, {120, 80}}).median.step_ms == 110);
}

}  // namespace resnet

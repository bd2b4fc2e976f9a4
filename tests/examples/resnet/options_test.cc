// SPDX-License-Identifier: Apache-2.0
#include "resnet_options.h"

#include <CLI/Error.hpp>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace resnet {
namespace {

Options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "resnet_synthetic");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

TEST_CASE("the defaults are those of Horovod's benchmark") {
  const Options options = parse({});
  CHECK(options.model == "resnet50");
  CHECK(options.image_size == 224);
  CHECK(options.benchmark.batch_size == 32);
  CHECK(options.benchmark.num_warmup_batches == 10);
  CHECK(options.benchmark.num_batches_per_iter == 10);
  CHECK(options.benchmark.num_iters == 10);
  CHECK_FALSE(options.benchmark.no_distributed);
  CHECK_FALSE(options.benchmark.efficiency);
}

TEST_CASE("every option reaches its place, and of two the last counts") {
  const Options options =
      parse({"--model", "resnet18", "--image-size", "64", "--batch-size", "9", "--batch-size", "4",
             "--num-warmup-batches", "0", "--num-batches-per-iter", "5", "--num-iters", "3",
             "--efficiency", "--json", "x.json"});
  CHECK(options.model == "resnet18");
  CHECK(options.image_size == 64);
  CHECK(options.benchmark.batch_size == 4);
  CHECK(options.benchmark.num_warmup_batches == 0);
  CHECK(options.benchmark.num_batches_per_iter == 5);
  CHECK(options.benchmark.num_iters == 3);
  CHECK(options.benchmark.efficiency);
  CHECK(options.benchmark.json == "x.json");
  CHECK(options.benchmark.device == "cpu");
  CHECK(parse({"--device", "cuda"}).benchmark.device == "cuda");
  CHECK(parse({"--no-distributed"}).benchmark.no_distributed);
  CHECK(parse({"--checkpoint", "x", "--resume"}).benchmark.resume);
  CHECK_FALSE(parse({"--device", "cuda"}).benchmark.cuda_graph);
  CHECK(parse({"--device", "cuda", "--cuda-graph", "--efficiency", "--in-step"})
            .benchmark.cuda_graph);
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
        Row{{"--device", "tpu"}, "--device"}, Row{{"--in-step"}, "--in-step requires --efficiency"},
        Row{{"--cuda-graph"}, "--cuda-graph requires --device cuda"},
        Row{{"--device", "cuda", "--cuda-graph", "--num-warmup-batches", "0"}, "at least 1"},
        Row{{"--resume"}, "--resume requires --checkpoint"},
        Row{{"--checkpoint", "x", "--efficiency"}, "--checkpoint excludes --efficiency"},
        Row{{"--json", "x"}, "--json requires --efficiency"}, Row{{"--unknown"}, "--unknown"}}) {
    INFO(row.words);
    CHECK_THROWS_AS(parse(row.arguments), CLI::ParseError);
    CHECK_THROWS_WITH(parse(row.arguments), Catch::Contains(row.words));
  }
  CHECK_NOTHROW(parse({"--batch-size", "1", "--image-size", "33"}));
}

}  // namespace resnet

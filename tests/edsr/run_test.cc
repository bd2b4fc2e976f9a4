// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, on images made for the test.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint.h"
#include "common/checksum.h"
#include "image_io.h"
#include "run.h"
#include "support.h"

namespace edsr {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using example::parameter_checksum;
using testing::loss_curve;
using testing::make_photographs;
using testing::Outcome;
using testing::quick;
using testing::run_edsr;
using testing::TemporaryFolder;

/// Runs and requires success.
void train(int ranks, const std::string& options) {
  const Outcome outcome = run_edsr(ranks, options);
  INFO(outcome.output);
  REQUIRE(outcome.status == 0);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

struct Checkpoint {
  std::uint64_t checksum = 0;  ///< of the network
  std::int64_t step = 0;
};

/// What a quick() run on six training photographs left.
Checkpoint read_checkpoint(const fs::path& output) {
  const RunConfig config{.network = {.blocks = 1, .features = 8, .scale = 2},
                         .batch = 8,
                         .patch = 12,
                         .samples = 6 * 32,
                         .seed = 1};
  Edsr network(config.network);
  torch::optim::Adam adam(network->parameters());
  const Position position = load_checkpoint(output / "checkpoint.pt", network, adam, config);
  return {parameter_checksum(*network), position.step};
}

std::uint64_t checkpoint_checksum(const fs::path& output) {
  return read_checkpoint(output).checksum;
}

}  // namespace

TEST_CASE("one, two and four ranks with the same total batch have the same loss curve") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const auto options = [&](const char* name) {
    return quick(folder / "data", folder / name) + "--steps 30 ";
  };
  train(1, options("one"));
  train(2, options("two"));
  train(4, options("four"));
  train(1, options("other") + "--seed 2");
  const std::vector<double> one = loss_curve(folder / "one");
  REQUIRE(one.size() == 30);
  CHECK(one.back() < one.front());
  // Losses are near 0.1; ranks differ by the order in which f32 gradients are summed.
  CHECK(largest_difference(one, loss_curve(folder / "two")) < 1e-5);
  CHECK(largest_difference(one, loss_curve(folder / "four")) < 1e-5);
  CHECK(largest_difference(one, loss_curve(folder / "other")) > 1e-3);
}

TEST_CASE("training in bf16 has nearly, but not quite, the loss curve of f32") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const auto options = [&](const char* name) {
    return quick(folder / "data", folder / name) + "--steps 20 ";
  };
  train(2, options("f32"));
  train(2, options("bf16") + "--amp");
  const std::vector<double> bf16 = loss_curve(folder / "bf16");
  CHECK(bf16.back() < bf16.front());
  // Losses are near 0.1, and bf16 has 8 bits.
  const double difference = largest_difference(bf16, loss_curve(folder / "f32"));
  CHECK(difference > 1e-6);
  CHECK(difference < 1e-2);
}

TEST_CASE("two ranks train, evaluate and leave table, picture, checkpoint and loss curve") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const fs::path table = folder.path() / "tables" / "t.json";
  const Outcome outcome =
      run_edsr(2, quick(folder / "data", folder / "out") + "--steps 40 --json " + table.string());
  INFO(outcome.output);
  REQUIRE(outcome.status == 0);

  const nlohmann::json json = nlohmann::json::parse(testing::read_text(table));
  std::set<std::string> keys;
  for (const auto& item : json.items()) keys.insert(item.key());
  CHECK(keys == std::set<std::string>{"ranks", "images_per_s_per_rank", "images_per_s_total",
                                      "steps", "loss_first", "loss_last", "psnr_bicubic",
                                      "psnr_network", "parameters_identical"});
  CHECK(json["ranks"] == 2);
  CHECK(json["steps"] == 40);
  CHECK(json["parameters_identical"] == true);
  const std::vector<double> losses = loss_curve(folder / "out");
  REQUIRE(losses.size() == 40);
  CHECK(json["loss_first"] == losses.front());
  CHECK(json["loss_last"] == losses.back());
  CHECK(losses.back() < losses.front());
  const double per_rank = json["images_per_s_per_rank"];
  CHECK(per_rank > 0);
  CHECK(json["images_per_s_total"].get<double>() == Approx(2 * per_rank));
  const double bicubic = json["psnr_bicubic"];
  CHECK(bicubic > 15);
  CHECK(bicubic < 60);
  CHECK(json["psnr_network"].get<double>() > 8);

  CHECK_THAT(outcome.output, Contains("6 photographs to train on") && Contains("2 held out"));
  CHECK_THAT(outcome.output, Contains("parameters identical on all ranks     yes"));
  CHECK_THAT(outcome.output, Contains("images/s"));
  const torch::Tensor picture = read_image(folder.path() / "out" / "comparison.png");
  CHECK(picture.size(2) == 4 * (384 + 6) + 6);
  CHECK(checkpoint_checksum(folder / "out") != 0);
}

TEST_CASE("the evaluation does not depend on the number of ranks") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const auto evaluate = [&](int ranks) {
    const fs::path table = folder / "t.json";
    // A rate too small to change any 8-bit result: only the evaluation is compared.
    train(ranks, quick(folder / "data", folder / "out") +
                     "--held-out 3 --steps 1 --lr 1e-12 --json " + table.string());
    return nlohmann::json::parse(testing::read_text(table));
  };
  const nlohmann::json one = evaluate(1);
  for (const int ranks : {2, 4}) {
    const nlohmann::json many = evaluate(ranks);
    CHECK(many["psnr_bicubic"] == one["psnr_bicubic"]);
    CHECK(many["psnr_network"].get<double>() == Approx(one["psnr_network"].get<double>()));
  }
}

TEST_CASE("a resumed run ends bit for bit where an uninterrupted one does") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  // An epoch has 24 steps: the first stop is inside it, the second at its end.
  const auto run = [&](const char* name, const char* rest) {
    train(1, quick(folder / "data", folder / name) + "--lr-halve-every 9 " + rest);
  };
  run("whole", "--steps 30");
  run("parts", "--steps 10");
  run("parts", "--steps 24 --resume");
  run("parts", "--steps 30 --resume");
  CHECK(checkpoint_checksum(folder / "parts") == checkpoint_checksum(folder / "whole"));
  CHECK(testing::read_text(folder.path() / "parts" / "loss.csv") ==
        testing::read_text(folder.path() / "whole" / "loss.csv"));
}

TEST_CASE("a run can be resumed on another number of ranks") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const auto run = [&](int ranks, const char* name, const char* rest) {
    train(ranks, quick(folder / "data", folder / name) + "--lr-halve-every 9 " + rest);
  };
  run(1, "whole", "--steps 30");
  run(2, "parts", "--steps 11");
  run(4, "parts", "--steps 30 --resume");
  CHECK(largest_difference(loss_curve(folder / "parts"), loss_curve(folder / "whole")) < 1e-5);
}

TEST_CASE("a run that was killed goes on from its last checkpoint") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const auto options = [&](const char* name) {
    return quick(folder / "data", folder / name) + "--lr-halve-every 9 ";
  };
  const fs::path output = folder / "out";
  testing::kill_edsr_once_there_is(output / "checkpoint.pt",
                                   options("out") + "--checkpoint-every 7 --steps 1000000");
  const std::int64_t step = read_checkpoint(output).step;
  CHECK(step % 7 == 0);
  CHECK(step < 1000000);
  const std::string steps = "--steps " + std::to_string(step + 10);
  train(1, options("out") + steps + " --resume");
  train(1, options("whole") + steps);
  CHECK(testing::read_text(output / "loss.csv") ==
        testing::read_text(folder.path() / "whole" / "loss.csv"));
  CHECK(checkpoint_checksum(output) == checkpoint_checksum(folder / "whole"));
}

TEST_CASE("losses of steps after the checkpoint are replaced when the run goes on") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const std::string options =
      quick(folder / "data", folder / "out") + "--lr-halve-every 9 --checkpoint-every 7 ";
  train(1, options + "--steps 17");
  // As if it had ended at step 17 without writing its checkpoint, but with all losses.
  const fs::path output = folder / "out";
  train(1, quick(folder / "data", folder / "early") + "--lr-halve-every 9 --steps 14");
  fs::copy_file(folder.path() / "early" / "checkpoint.pt", output / "checkpoint.pt",
                fs::copy_options::overwrite_existing);
  train(1, options + "--steps 20 --resume");
  train(1, quick(folder / "data", folder / "whole") + "--lr-halve-every 9 --steps 20");
  CHECK(testing::read_text(output / "loss.csv") ==
        testing::read_text(folder.path() / "whole" / "loss.csv"));
  CHECK(checkpoint_checksum(output) == checkpoint_checksum(folder / "whole"));
}

TEST_CASE("a budget of minutes stops all ranks at the same step") {
  const TemporaryFolder folder;
  make_photographs(folder / "data", 8);
  const fs::path table = folder / "t.json";
  train(2, quick(folder / "data", folder / "out") + "--minutes 0.05 --json " + table.string());
  const nlohmann::json json = nlohmann::json::parse(testing::read_text(table));
  CHECK(json["parameters_identical"] == true);
  CHECK(json["steps"].get<std::size_t>() == loss_curve(folder / "out").size());
  CHECK(json["steps"] > 0);
}

TEST_CASE("help is printed without training") {
  const Outcome outcome = run_edsr(1, "--help");
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.output, Contains("--data") && Contains("--resume"));
}

TEST_CASE("two ranks measure their scaling efficiency without photographs") {
  const TemporaryFolder folder;
  const fs::path result = folder / "e.json";
  const Outcome outcome =
      run_edsr(2,
               "--efficiency --blocks 1 --features 4 --patch 8 --batch-size 1 --num-iters 2 "
               "--num-batches-per-iter 2 --num-warmup-batches 1 --json " +
                   result.string());
  INFO(outcome.output);
  REQUIRE(outcome.status == 0);
  CHECK_THAT(outcome.output, Contains("Model: edsr-1x4") && Contains("Batch size: 1") &&
                                 Contains("Scaling efficiency on 2 CPU(s): "));
  const nlohmann::json json = nlohmann::json::parse(testing::read_text(result));
  CHECK(json["model"] == "edsr-1x4");
  CHECK(json["ranks"] == 2);
  CHECK(json["efficiency"].get<double>() > 0);
}

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using Catch::Contains;
using namespace ronde::test;

/// The options of a small, quick run, and more of them.
Words small(const Words& more) {
  Words options = {
      "--model",     "resnet18", "--image-size",           "32", "--batch-size",         "2",
      "--num-iters", "2",        "--num-batches-per-iter", "2",  "--num-warmup-batches", "1"};
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

/// Requires the lines of `text` to match the patterns, one by one.
void require_lines(const std::string& text, const Words& patterns) {
  INFO(text);
  std::istringstream lines(text);
  std::string line;
  for (const std::string& pattern : patterns) {
    INFO(pattern);
    REQUIRE(std::getline(lines, line));
    CHECK(std::regex_match(line, std::regex(pattern)));
  }
  CHECK_FALSE(std::getline(lines, line));
}

double number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + words.size()));
}

}  // namespace

TEST_CASE("the output has the lines of Horovod's benchmark") {
  struct Case {
    int ranks;
    Words options;
  };
  for (const Case& one : {Case{1, {}}, Case{2, {}}, Case{2, {"--amp", "--fp16-allreduce"}},
                          Case{2, {"--no-distributed"}}}) {
    const std::string text = launch_well(one.ranks, small(one.options));
    const std::string ranks = std::to_string(one.ranks);
    Words lines = {"Model: resnet18",
                   "Batch size: 2",
                   "Number of CPUs: " + ranks,
                   "Running warmup...",
                   "Running benchmark...",
                   R"(Iter #0: \d+\.\d img/sec per CPU)",
                   R"(Iter #1: \d+\.\d img/sec per CPU)",
                   R"(Img/sec per CPU: \d+\.\d \+-\d+\.\d)",
                   "Total img/sec on " + ranks + R"( CPU\(s\): \d+\.\d \+-\d+\.\d)"};
    if (one.options == Words{"--no-distributed"}) {
      lines.insert(lines.begin() + 3, "Unconnected: the ranks exchange nothing");
    }
    require_lines(text, lines);
    const double each = number_after(text, "Img/sec per CPU: ");
    CHECK(each > 0);
    const double total = number_after(text, "CPU(s): ");
    CHECK(total == Approx(one.ranks * each).margin(0.05 * (one.ranks + 1)));  // both are rounded
  }
}

TEST_CASE("a run goes on after the last iteration that was saved, on another number of ranks") {
  const TemporaryFolder folder;
  const std::string checkpoint = folder.path() / "c";
  launch_well(2, small({"--checkpoint", checkpoint, "--resume"}));
  const Words options = {"--checkpoint", checkpoint, "--resume", "--num-iters", "3"};
  const std::string text = launch_well(1, small(options));
  CHECK_THAT(text, Contains("Resumed after iteration #1\n") && Contains("Iter #2: ") &&
                       !Contains("Iter #1: "));
  CHECK_THAT(launch_badly(1, small(options)), Contains("of iteration 3: nothing is left"));
}

TEST_CASE("the efficiency is printed by rounds and written as JSON") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "made" / "e.json";
  const std::string text = launch_well(2, small({"--efficiency", "--json", file}));
  const std::string round =
      R"(: \d+\.\d\d ms a step unconnected, \d+\.\d\d ms distributed, efficiency \d+\.\d %)";
  const std::string step = R"(: \d+\.\d\d ms a step, \d+\.\d img/sec per CPU)";
  require_lines(
      text, {"Model: resnet18", "Batch size: 2", "Number of CPUs: 2", "Running warmup...",
             "Running benchmark...", "Round #0" + round, "Round #1" + round, "Unconnected" + step,
             "Distributed" + step,
             R"(Scaling efficiency on 2 CPU\(s\): \d+\.\d % \(rounds: \d+\.\d to \d+\.\d %\))"});

  const nlohmann::json json = nlohmann::json::parse(read_text(file));
  CHECK(json.size() == 5);
  CHECK(json.at("model") == "resnet18");
  CHECK(json.at("ranks") == 2);
  const double connected = json.at("step_ms");
  const double unconnected = json.at("step_ms_unconnected");
  CHECK(connected > 0);
  CHECK(unconnected > 0);
  CHECK(json.at("efficiency").get<double>() == Approx(unconnected / connected));
  CHECK(number_after(text, "Distributed: ") == Approx(connected).margin(0.01));
  CHECK(number_after(text, "Unconnected: ") == Approx(unconnected).margin(0.01));
}

TEST_CASE("what cannot be done ends the run before training, in words that help") {
  const TemporaryFolder folder;
  CHECK_THAT(launch_badly(2, small({"--efficiency", "--json", folder.path()})),
             Contains("--json") && Contains("is a folder") && !Contains("Running"));
  CHECK_THAT(launch_badly(1, small({"--device", "cuda"}), {{"CUDA_VISIBLE_DEVICES", ""}}),
             Contains("--device cuda: ") && Contains("leave --device out"));
}

// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/temporary_folder.h"

namespace {

using Catch::Contains;
using ronde::test::CommandResult;
using ronde::test::TemporaryFolder;
using Words = std::vector<std::string>;

const Words kSmall = {
    "--model",     "resnet18", "--image-size",           "32", "--batch-size",         "2",
    "--num-iters", "2",        "--num-batches-per-iter", "2",  "--num-warmup-batches", "1"};

/// Runs the benchmark on so many ranks, one thread each, and ends it after two minutes.
CommandResult run(int ranks, const Words& options) {
  Words words = {"/usr/bin/env",
                 "timeout",
                 "-k",
                 "5",
                 "120",
                 RESNET_LAUNCHER_PROGRAM,
                 RESNET_LAUNCHER_COUNT,
                 std::to_string(ranks),
                 RESNET_PROGRAM};
  words.insert(words.end(), options.begin(), options.end());
  return ronde::test::run_program(words, {{"OMP_NUM_THREADS", "1"}});
}

CommandResult run_small(int ranks, const Words& more) {
  Words options = kSmall;
  options.insert(options.end(), more.begin(), more.end());
  return run(ranks, options);
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

Words throughput_lines(const std::string& ranks) {
  return {"Model: resnet18",
          "Batch size: 2",
          "Number of CPUs: " + ranks,
          "Running warmup...",
          "Running benchmark...",
          R"(Iter #0: \d+\.\d img/sec per CPU)",
          R"(Iter #1: \d+\.\d img/sec per CPU)",
          R"(Img/sec per CPU: \d+\.\d \+-\d+\.\d)",
          "Total img/sec on " + ranks + R"( CPU\(s\): \d+\.\d \+-\d+\.\d)"};
}

}  // namespace

TEST_CASE("the output has the lines of Horovod's benchmark, on one rank and on two") {
  for (const int ranks : {1, 2}) {
    const CommandResult result = run_small(ranks, {});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    require_lines(result.out, throughput_lines(std::to_string(ranks)));
    const double each = number_after(result.out, "Img/sec per CPU: ");
    CHECK(each > 0);
    const double total = number_after(result.out, "CPU(s): ");
    CHECK(total == Approx(ranks * each).margin(0.05 * (ranks + 1)));  // both are rounded
  }
}

TEST_CASE("half precision may be computed in, and sent") {
  const CommandResult result = run_small(2, {"--amp", "--fp16-allreduce"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  require_lines(result.out, throughput_lines("2"));
}

TEST_CASE("a GPU that is not there ends the run in words that help") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const CommandResult result = run_small(1, {"--device", "cuda"});
  unsetenv("CUDA_VISIBLE_DEVICES");
  CHECK(result.exit_code != 0);
  CHECK_THAT(result.err,
             Catch::Contains("--device cuda: ") && Catch::Contains("leave --device out"));
}

TEST_CASE("unconnected ranks say that they are, and otherwise the same lines") {
  const CommandResult result = run_small(2, {"--no-distributed"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  Words lines = throughput_lines("2");
  lines.insert(lines.begin() + 3, "Unconnected: the ranks exchange nothing");
  require_lines(result.out, lines);
}

TEST_CASE("the efficiency is printed by rounds and written as JSON") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "made" / "e.json").string();
  const CommandResult result = run_small(2, {"--efficiency", "--json", file});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string round =
      R"(: \d+\.\d\d ms a step unconnected, \d+\.\d\d ms distributed, efficiency \d+\.\d %)";
  const std::string step = R"(: \d+\.\d\d ms a step, \d+\.\d img/sec per CPU)";
  require_lines(
      result.out,
      {"Model: resnet18", "Batch size: 2", "Number of CPUs: 2", "Running warmup...",
       "Running benchmark...", "Round #0" + round, "Round #1" + round, "Unconnected" + step,
       "Distributed" + step,
       R"(Scaling efficiency on 2 CPU\(s\): \d+\.\d % \(rounds: \d+\.\d to \d+\.\d %\))"});

  const nlohmann::json json = nlohmann::json::parse(ronde::test::read_text(file));
  std::set<std::string> keys;
  for (const auto& item : json.items()) keys.insert(item.key());
  CHECK(keys ==
        std::set<std::string>{"model", "ranks", "step_ms", "step_ms_unconnected", "efficiency"});
  CHECK(json["model"] == "resnet18");
  CHECK(json["ranks"] == 2);
  const double connected = json["step_ms"];
  const double unconnected = json["step_ms_unconnected"];
  CHECK(connected > 0);
  CHECK(unconnected > 0);
  CHECK(json["efficiency"].get<double>() == Approx(unconnected / connected));
  CHECK(number_after(result.out, "Distributed: ") == Approx(connected).margin(0.01));
  CHECK(number_after(result.out, "Unconnected: ") == Approx(unconnected).margin(0.01));
}

TEST_CASE("ranks that only wait for each other are measured, too, if asked for") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "e.json").string();
  const CommandResult result = run_small(2, {"--efficiency", "--in-step", "--json", file});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const nlohmann::json json = nlohmann::json::parse(ronde::test::read_text(file));
  const double in_step = json["step_ms_in_step"];
  const double unconnected = json["step_ms_unconnected"];
  CHECK(in_step > 0);
  CHECK(number_after(result.out, "In step: ") == Approx(in_step).margin(0.01));
  CHECK(number_after(result.out, "Scaling efficiency without exchange: ") ==
        Approx(100 * unconnected / in_step).margin(0.1));
}

TEST_CASE("a wrong option is explained once, before anything is trained") {
  const CommandResult result = run_small(2, {"--in-step"});
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  const std::string words = "resnet_synthetic: --in-step requires --efficiency";
  const std::size_t first = result.err.find(words);
  REQUIRE(first != std::string::npos);
  CHECK(result.err.find(words, first + 1) == std::string::npos);
}

TEST_CASE("a result that cannot be written ends the run before training") {
  const TemporaryFolder folder;
  const CommandResult result = run_small(2, {"--efficiency", "--json", folder.path().string()});
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, Contains("--json") && Contains("is a folder"));
  CHECK_THAT(result.out, !Contains("Running"));
}

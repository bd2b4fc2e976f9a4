// SPDX-License-Identifier: Apache-2.0
// `ronde tune` over a program that only writes a profile: steps are fastest with 8 MiB and one
// stream of the CPU backend "mpi".
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"

namespace {

using namespace ronde::test;
using Catch::Contains;
using Words = std::vector<std::string>;

constexpr const char* kBegin = R"(#!/bin/sh
time=3000 steps=30 hosts=1
case "$RONDE_FUSION_BYTES" in
  4MiB|16MiB) time=1500 ;;
  8MiB) time=1000 ;;
  32MiB) time=2000 ;;
esac
[ "$RONDE_CPU_BACKEND" = mpi ] || time=$((time + 200))
[ "$RONDE_AUTOTUNE" = 0 ] || exit 9
)";
constexpr const char* kEnd = R"(
: "${total=$((time * steps + 8 * time))}"
cat >"$RONDE_PROFILE" <<JSON
{"ronde_profile": 1, "ranks": 2, "hosts": $hosts, "backends": {"cpu": "shm", "cuda": ""},
 "merged": {"steps": {"count": $steps, "time":
   {"count": $steps, "total_us": $total, "max_us": $((9 * time)), "p50_us": 2048}}}}
JSON
sed -i 's/"model": ""/"model": "0123456789abcdef"/' "$RONDE_TUNED"
)";

/// A folder with such a program, and where the tuned file goes.
class FakeProgram {
 public:
  /// `lines`: of shell, before the profile is written.
  explicit FakeProgram(const std::string& lines = "") {
    write_bytes(program(), kBegin + lines + kEnd);
    std::filesystem::permissions(program(), std::filesystem::perms::owner_all);
  }

  CommandResult tune(Words options = {},
                     const std::map<std::string, std::string>& environment = {}) const {
    Words words = {"tune", "--out", tuned()};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", program(), "--an-option", "of the program"});
    return run_command(words, environment);
  }
  std::string program() const { return folder_ / "train"; }
  std::string tuned() const { return folder_ / "tuned.json"; }
  nlohmann::json settings() const { return nlohmann::json::parse(read_text(tuned())); }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("ronde tune finds the fastest variables, says how, and writes them") {
  const FakeProgram program;
  const CommandResult result = program.tune();
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK_THAT(result.out, Contains("run 1 (first): the defaults\n  3.20 ms a step, of 30 steps\n"));
  CHECK_THAT(result.out, Contains("% less time a step than with the defaults\n"));
  CHECK_THAT(result.out, Contains("use it with RONDE_TUNED=" + program.tuned()));
  const nlohmann::json settings = program.settings();
  CHECK(settings.at("finished") == true);
  CHECK(settings.at("model") == "0123456789abcdef");
  CHECK(settings.at("ranks") == 2);
  CHECK(settings.at("hosts") == 1);
  CHECK(settings.at("step_us").get<double>() <= 1200);
  CHECK(settings.at("values").at("RONDE_FUSION_BYTES") == "8MiB");
  CHECK_FALSE(settings.at("values").contains("RONDE_NCCL_STREAMS"));  // there is no GPU
  const CommandResult again = run_command({"info"}, {{"RONDE_TUNED", program.tuned()}});
  CHECK(again.exit_code == 0);
}

TEST_CASE("ronde tune leaves variables as they are set, and runs that fail or are too short") {
  const FakeProgram program(
      "[ \"$RONDE_FUSION_BYTES\" = 8MiB ] && exit 3\n"
      "[ \"$RONDE_FUSION_BYTES\" = 16MiB ] && steps=2\n");
  const CommandResult result = program.tune({}, {{"HOROVOD_CYCLE_TIME", "2"}});
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out.find("RONDE_CYCLE_TIME_MS") == std::string::npos);
  CHECK_THAT(result.out, Contains("  does not count: it ended with exit code 3\n") ||
                             Contains("  does not count: it took 2 steps, and 10 are needed"));
  const nlohmann::json values = program.settings().at("values");
  CHECK_FALSE(values.contains("RONDE_CYCLE_TIME_MS"));
  CHECK(values.at("RONDE_FUSION_BYTES") != "8MiB");
  CHECK(values.at("RONDE_FUSION_BYTES") != "16MiB");
}

TEST_CASE("ronde tune keeps the defaults where nothing is faster") {
  const FakeProgram program("time=1000\n");
  const CommandResult result = program.tune({"--runs", "20"});
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("\nnothing is clearly faster than the defaults\n"));
  CHECK(program.settings().at("values").at("RONDE_FUSION_BYTES") == "64MiB");
  const auto runs = std::count(result.out.begin(), result.out.end(), '\n');
  CHECK(runs < 60);
}

TEST_CASE("ronde tune says what is wrong with a program that it cannot tune") {
  const auto problem = [](const CommandResult& result) {
    CHECK(result.exit_code == 2);
    return result.err;
  };
  CHECK_THAT(problem(FakeProgram("exit 3\n").tune()),
             Contains("ronde tune: the program cannot be tuned, as with the settings of the "
                      "environment it ended with exit code 3\n"));
  CHECK_THAT(problem(FakeProgram("kill -9 $$\n").tune()), Contains("it was ended by signal 9"));
  CHECK_THAT(problem(FakeProgram("exit 0\n").tune()), Contains("it wrote no profile"));
  CHECK_THAT(problem(FakeProgram("steps=0\n").tune()),
             Contains("it took 0 steps, and 10 are needed (--steps)"));
  CHECK_THAT(problem(FakeProgram("total=many\n").tune()), Contains("its profile makes no sense"));
  CHECK_THAT(problem(run_command({"tune", "--", "/proc/none/train"})),
             Contains("/proc/none/train cannot be started: No such file or directory"));
  CHECK_THAT(problem(run_command({"tune"})), Contains("command is required"));
}

TEST_CASE("ronde tune says where the file cannot be written") {
  const FakeProgram program;
  const CommandResult result = run_command(
      {"tune", "--runs", "20", "--out", "/proc/none/tuned.json", "--", program.program()});
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err, Contains("/proc/none/tuned.json: it cannot be written: "));
}

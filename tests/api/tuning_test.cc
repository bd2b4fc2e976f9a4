// SPDX-License-Identifier: Apache-2.0
// The files of RONDE_AUTOTUNE and RONDE_TUNED. The hidden case is a rank.
#include <algorithm>
#include <catch2/catch.hpp>
#include <iostream>

#include "api/src/tuned_file.h"
#include "ronde/build_info.h"
#include "ronde/ronde.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/processes/file_ranks.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

TunedSettings some_settings() {
  TunedSettings settings;
  settings.values = {{"RONDE_FUSION_BYTES", "2MiB"}, {"RONDE_CYCLE_TIME_MS", "5"}};
  settings.finished = false;
  settings.model = "0123456789abcdef";
  settings.ranks = 8;
  settings.hosts = 2;
  settings.step_s = 0.25;
  settings.start_step_s = 0.5;
  return settings;
}

std::string problem_of(const std::string& path) {
  std::string problem;
  CHECK_FALSE(read_tuned(path, problem));
  return problem;
}

/// The file, with `from` replaced by `to`.
void replace_in(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = read_text(path);
  REQUIRE(text.find(from) != std::string::npos);
  write_bytes(path, text.replace(text.find(from), from.size(), to));
}

TEST_CASE("helper: a rank that tunes", "[.]") {
  InitOptions options;
  options.key_value = start_by_files();
  init(options);
  std::array<std::vector<float>, 3> values;
  values.fill(std::vector<float>(300, 1.0F));
  const int steps = std::stoi(started_with("START_STEPS"));
  const std::string tuned = default_runtime().config().tuned;
  std::vector<float> ends = {0};
  for (int step = 0; ends[0] == 0; ++step) {
    std::string ignored;
    const auto found = read_tuned(tuned, ignored);
    const bool is_enough = steps > 0 ? step + 1 == steps : found && found->finished;
    ends[0] = rank() == 0 && is_enough ? 1 : 0;
    std::vector<Work> works;
    works.push_back(submit(sum_request(ends, "ends")));
    for (std::size_t i = 0; i < 3; ++i) {
      works.push_back(submit(sum_request(values[i], std::to_string(i))));
    }
    for (const Work& work : works) work.wait();
    default_runtime().mark_step();
  }
  std::cerr << "fusion bytes: " << default_runtime().config().fusion_bytes << "\n";
  shutdown();
}

/// `steps`: 0 until the search has ended.
std::vector<CommandResult> run_tuning(int ranks, int steps,
                                      std::map<std::string, std::string> variables) {
  variables["START_STEPS"] = std::to_string(steps);
  variables.emplace("RONDE_LOG_LEVEL", "warning");
  auto results = run_file_ranks(ranks, "helper: a rank that tunes", variables);
  for (const CommandResult& result : results) {
    INFO(result.out << result.err);
    CHECK(result.exit_code == 0);
  }
  return results;
}

}  // namespace

TEST_CASE("tuned settings are read as they were written") {
  const TemporaryFolder folder;
  const std::string path = folder / "tuned.json";
  const TunedSettings written = some_settings();
  REQUIRE(write_tuned(path, written).empty());
  std::string problem;
  const auto read = read_tuned(path, problem);
  REQUIRE(read);
  CHECK(read->values == written.values);
  CHECK((read->finished == written.finished && read->model == written.model));
  CHECK((read->ranks == written.ranks && read->hosts == written.hosts));
  CHECK((read->step_s == written.step_s && read->start_step_s == written.start_step_s));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a tuned file that is of no use says why") {
  const TemporaryFolder folder;
  const std::string path = folder / "tuned.json";
  CHECK(problem_of(path).empty());  // there is none
  REQUIRE(write_tuned(path, some_settings()).empty());
  const std::string text = read_text(path);
  for (std::size_t bytes = 0; bytes + 2 < text.size(); ++bytes) {
    write_bytes(path, text.substr(0, bytes));
    CHECK_THAT(problem_of(path), Contains("damaged at byte "));
  }
  const std::vector<std::array<std::string, 3>> rows = {
      {std::string(build_info::kVersion), "0.0.7", "tuned with Ronde 0.0.7, and this is "},
      {"2MiB", "many", "RONDE_FUSION_BYTES: \"many\""},
      {"RONDE_FUSION_BYTES", "RONDE_FISSION", "no variable \"RONDE_FISSION\""},
      {"RONDE_FUSION_BYTES", "RONDE_CPU_BACKEND", "no variable \"RONDE_CPU_BACKEND\""},
      {"\"RONDE_FUSION_BYTES\": \"2MiB\"",
       "\"RONDE_ALGORITHMS\": \"allreduce:ring,allreduce:chain@1MiB\"",
       "\"chain\" is no algorithm of allreduce: there are "},
      {"\"ronde_tuned\": 1", "\"ronde_tuned\": 2", "layout 2"},
      {"\"ranks\": 8", "\"ranks\": -8", "its \"ranks\" is "},
      {"\"ranks\": 8", "\"ranks\": 8e99", "its \"ranks\" is "},
      {"\"ranks\": 8", "\"ranks\": 4294967304", "its \"ranks\" is "}};
  for (const auto& [from, to, words] : rows) {
    write_bytes(path, text);
    replace_in(path, from, to);
    CHECK_THAT(problem_of(path), Contains(words));
  }
  write_bytes(path, "[]");
  CHECK_THAT(problem_of(path), Contains("no file of tuned settings"));
  CHECK_THAT(problem_of(folder.path()), Contains("cannot be read: "));
  CHECK_THAT(write_tuned("/proc/none/tuned.json", some_settings()),
             Contains("cannot be written: "));
}

TEST_CASE("a run tunes itself, and the next one begins with what it found") {
  const TemporaryFolder folder;
  const std::string tuned = folder / "tuned.json";
  const std::string log = folder / "log.csv";
  write_bytes(tuned, "of somebody else");
  const auto results = run_tuning(2, 0,
                                  {{"RONDE_AUTOTUNE", "1"},
                                   {"HOROVOD_AUTOTUNE_LOG", log},
                                   {"RONDE_TUNED", tuned},
                                   {"RONDE_CYCLE_TIME_MS", "2"}});
  CHECK(read_text(tuned + ".old") == "of somebody else");
  CHECK_THAT(results[0].err,
             Contains(tuned + " is written anew; what it held is in " + tuned + ".old\n"));
  std::string problem;
  const auto found = read_tuned(tuned, problem);
  REQUIRE(found);
  CHECK(found->finished);
  CHECK(found->ranks == 2);
  CHECK(found->values.at("RONDE_CYCLE_TIME_MS") == "2");
  const std::string lines = read_text(log);
  CHECK_THAT(lines, Catch::StartsWith("trial,step,phase,RONDE_CYCLE_TIME_MS,RONDE_FREEZE_AFTER_"
                                      "STEPS,RONDE_FUSION_BYTES,step_ms,steps\n1,"));
  CHECK(std::ranges::count(lines, '\n') > 10);

  replace_in(tuned, found->values.at("RONDE_FUSION_BYTES"), "3MiB");
  for (const CommandResult& result : run_tuning(2, 5, {{"RONDE_TUNED", tuned}})) {
    CHECK(result.err == "fusion bytes: 3145728\n");
  }
}

TEST_CASE("training goes on where tuned settings can be neither read nor written") {
  const TemporaryFolder folder;
  const std::string damaged = folder / "tuned.json";
  write_bytes(damaged, "{\"ronde_");
  const auto results = run_tuning(2, 5, {{"RONDE_TUNED", damaged}});
  CHECK_THAT(results[0].err, Contains("RONDE_TUNED: " + damaged + " is not used: it is damaged") &&
                                 Contains("Tune again, or unset RONDE_TUNED"));
  CHECK(results[1].err == "fusion bytes: 67108864\n");

  const auto unwritable = run_tuning(2, 200,
                                     {{"RONDE_AUTOTUNE", "1"},
                                      {"RONDE_AUTOTUNE_LOG", "/proc/none/log.csv"},
                                      {"RONDE_TUNED", "/proc/none/tuned.json"}});
  CHECK_THAT(unwritable[0].err,
             Contains("RONDE_TUNED: /proc/none/tuned.json: it cannot be written: "
                      "No such file or directory; training goes on\n"));
  CHECK_THAT(unwritable[0].err, Contains("RONDE_AUTOTUNE_LOG: /proc/none/log.csv: it cannot be "));
  // Each is said once, however often it is tried.
  CHECK(occurrences(unwritable[0].err, "it cannot be written") == 2);

  const auto absent = run_tuning(
      1, 5, {{"RONDE_TUNED", folder / "none.json"}, {"RONDE_AUTOTUNE_LOG", folder / "log.csv"}});
  CHECK_THAT(absent[0].err, Contains("log.csv is not written without RONDE_AUTOTUNE=1"));
  CHECK_THAT(absent[0].err, Contains("there is no such file: RONDE_AUTOTUNE=1 writes it"));
}

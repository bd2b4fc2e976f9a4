// SPDX-License-Identifier: Apache-2.0
// Ranks that no launcher started, as processes that meet through files. Hidden cases are a rank.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <latch>

#include "ronde/ronde.h"
#include "tests/support/processes/file_ranks.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/support/ranks/built_in.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;

constexpr int kGroupError = 9;

float reduced(Runtime& runtime, float value) {
  std::vector<float> values = {value};
  runtime.run(sum_request(values, "x"));
  return values[0];
}

TEST_CASE("helper: a rank", "[.]") {
  const KeyValueStart start = start_by_files();
  try {
    Runtime runtime(options_without_launcher(start));
    const auto rank = static_cast<float>(start.rank);
    std::cerr << "sum " << reduced(runtime, rank) << " by " << runtime.backend_name(DeviceKind::Cpu)
              << "\n";
    runtime.run(barrier_request());  // the others have their sums
    if (start.rank == start.size - 1) {
      if (started_with("START_VICTIM") == "killed") ::raise(SIGKILL);
      std::_Exit(3);
    }
    reduced(runtime, rank);
    runtime.shutdown();
  } catch (const GroupError& error) {
    std::cerr << "group " << error.failed_rank() << ": " << error.what() << "\n";
    std::_Exit(kGroupError);
  }
}

std::filesystem::path dump_of(int rank) {
  return started_with("RONDE_DUMP") + "/rank" + std::to_string(rank) + ".json";
}

/// Also a rank that had not started when the first stall was told has dumped one of the next.
bool all_have_dumped_a_stall() {
  for (int rank = 0; rank < ronde::size(); ++rank) {
    if (!std::filesystem::exists(dump_of(rank))) return false;
    const std::string text = read_text(dump_of(rank));
    if (text.find(R"("reason": "stall")") == std::string::npos) return false;
    if (text.find("allreduce 'x' stalls") == std::string::npos) return false;
  }
  return true;
}

TEST_CASE("helper: a rank that is told of a stall", "[.]") {
  std::latch told(1);
  StalledOperation seen;
  ronde::set_stall_callback([&](const std::vector<StalledOperation>& stalled) {
    // Rank 0 may know of itself alone before it knows of rank 2.
    if (!seen.text.empty() || stalled.at(0).submitted_ranks.size() < 2) return;
    seen = stalled[0];
    told.count_down();
  });
  ronde::init({.key_value = start_by_files()});
  if (ronde::rank() == 1) {
    told.wait();
    while (!all_have_dumped_a_stall()) std::this_thread::yield();
  }
  CHECK(reduced(default_runtime(), 2) == 6);
  CHECK(seen.name == "x");
  CHECK(seen.text == "allreduce 'x'");
  CHECK(seen.kind == Collective::Allreduce);
  CHECK(ranks_in(seen.submitted_ranks) == std::vector<int>{0, 2});
  CHECK(ranks_in(seen.missing_ranks) == std::vector<int>{1});
  CHECK(seen.waiting >= std::chrono::milliseconds(50));
  ronde::shutdown();
}

TEST_CASE("helper: a rank that is asked for a dump while it starts", "[.]") {
  KeyValueStart start = start_by_files();
  start.put = [put = start.put](const std::string& key, const std::string& value) {
    ::raise(SIGUSR2);
    put(key, value);
  };
  ronde::init({.key_value = start});
  while (!std::filesystem::exists(dump_of(start.rank)))
    std::this_thread::yield();  // the watchdog ends it
  ronde::shutdown();
}

TEST_CASE("helper: a rank that comes and goes", "[.]") {
  ronde::init({.key_value = start_by_files()});
  ronde::shutdown();
}

void check_helpers(const std::string& helper, const std::map<std::string, std::string>& variables) {
  for (const CommandResult& result : run_file_ranks(3, helper, variables)) {
    INFO(result.out << result.err);
    CHECK(result.exit_code == 0);
  }
}

}  // namespace

TEST_CASE("processes compute over shm, and the death of one is a GroupError that names it") {
  for (const std::string victim : {"killed", "exits"}) {
    INFO(victim);
    // As one rank of a foreign launcher would see it: it must not matter.
    const std::vector<CommandResult> results =
        run_file_ranks(3, "helper: a rank", {{"START_VICTIM", victim}, {"PMI_SIZE", "7"}});
    for (const std::size_t survivor : {0, 1}) {
      INFO(results[survivor].err);
      CHECK(results[survivor].exit_code == kGroupError);
      CHECK_THAT(results[survivor].err, Contains("sum 3 by shm\n") && Contains("group 2: rank 2 "));
    }
    CHECK(results[2].exit_code == (victim == "killed" ? -1 : 3));
  }
}

TEST_CASE("SIGUSR2 in init() ends no rank, and each dumps once it has met the others") {
  const TemporaryFolder folder;
  check_helpers("helper: a rank that is asked for a dump while it starts",
                {{"RONDE_DUMP", folder.path()}, {"RONDE_DUMP_ON_SIGUSR2", "1"}});
}

TEST_CASE("a stall callback is called on every rank with who is missing") {
  const TemporaryFolder dumps;
  check_helpers("helper: a rank that is told of a stall",
                {{"RONDE_STALL_WARN_S", "0.05"}, {"RONDE_DUMP", dumps.path()}});
}

TEST_CASE("rank 0 alone warns of Horovod's variables that are not read, in one line") {
  const std::vector<CommandResult> results = run_file_ranks(3, "helper: a rank that comes and goes",
                                                            {{"HOROVOD_TIMELINE_MARK_CYCLES", "1"},
                                                             {"HOROVOD_ELASTIC", "1"},
                                                             {"HOROVOD_CYCLE_TIME", "2"},
                                                             {"RONDE_LOG_LEVEL", "warning"}});
  CHECK_THAT(results[0].err,
             Catch::Matches(".*warning: Ronde does not read HOROVOD_ELASTIC, "
                            "HOROVOD_TIMELINE_MARK_CYCLES: docs/coming_from_horovod.md .*\n"));
  CHECK(results[1].err + results[2].err == "");
}

// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <sstream>

#include "tests/support/processes/beside.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"
#include "tests/tools/run/run_command.h"

namespace {

using namespace ronde::test;
using Catch::Contains;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

CommandResult run_ranks_by_command(Words options, const Words& program) {
  options.insert(options.begin(), "run");
  options.emplace_back("--");
  options.insert(options.end(), program.begin(), program.end());
  return run_command(std::move(options));
}

CommandResult run_script(Words options, const std::string& script) {
  return run_ranks_by_command(std::move(options), {"/bin/sh", "-c", script});
}

// Says who it is, and ends only by a signal.
const std::string kSleeper = "echo agent $PPID pid $$ ready; exec sleep 1000";
const std::string kStubborn = "trap '' INT TERM; " + kSleeper;

}  // namespace

TEST_CASE("ronde run gives ranks what torchrun gives them, and writes which rank said what") {
  const auto result = run_script(
      {"-n", "2", "--env", "COLOUR=blue"},
      "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $GROUP_RANK of "
      "$GROUP_WORLD_SIZE at $MASTER_ADDR, $TORCHELASTIC_RESTART_COUNT $RONDE_RESTART, $COLOUR; "
      "test ${#RONDE_JOB_KEY} -ge 16 -a $MASTER_PORT -gt 0 -a $OMP_NUM_THREADS -ge 1 || exit 9; "
      "echo $RONDE_JOB_KEY$MASTER_PORT$TORCHELASTIC_RUN_ID | md5sum; echo careful >&2; printf end");
  ended(0, result);
  CHECK_THAT(result.out, Contains("[0] 0 of 2, 0 of 2, 0 of 1 at 127.0.0.1, 0 0, blue\n"));
  CHECK_THAT(result.out, Contains("[1] 1 of 2, 1 of 2, 0 of 1 at 127.0.0.1, 0 0, blue\n"));
  CHECK_THAT(result.out, Contains("[0] end\n") && Contains("[1] end\n"));
  CHECK_THAT(result.err, Contains("[0] careful\n") && Contains("[1] careful\n"));
  const auto hash = [&](const std::string& rank) {
    const std::string& text = result.out;
    return text.substr(text.find("  -\n", text.find("[" + rank + "] ")) - 32, 32);
  };
  CHECK(hash("0") == hash("1"));
}

TEST_CASE("ronde run writes output without ranks, or to files") {
  CHECK(run_script({"-n", "1", "--plain"}, "printf 'a\\nb\\r'").out == "a\nb\r");
  const TemporaryFolder folder;
  const auto result =
      ended(0, run_script({"-n", "2", "--log-dir", folder / "logs"}, "echo I am $RANK"));
  CHECK(result.out.empty());
  CHECK(read_text(folder / "logs/attempt-0/rank-1.log") == "I am 1\n");
  fs::create_directory(folder / "logs/attempt-1");
  write_bytes(folder / "logs/attempt-1/rank-0.log", "");
  write_bytes(folder / "logs/attempt-x.log", "the user's");
  CHECK(run_script({"-n", "1", "--log-dir", folder / "logs"}, "").exit_code == 0);
  CHECK(!fs::exists(folder / "logs/attempt-0/rank-1.log"));
  CHECK(!fs::exists(folder / "logs/attempt-1"));
  CHECK(fs::exists(folder / "logs/attempt-x.log"));
}

TEST_CASE("ronde run binds ranks to their share of the cores") {
  const std::string alone = run_script({"-n", "1", "--plain"}, "env -u OMP_NUM_THREADS nproc").out;
  const auto bound =
      ended(0, run_script({"-n", alone.substr(0, alone.find('\n')), "--plain", "--bind", "core"},
                          "sed -n 's/Cpus_allowed_list:/core/p' /proc/self/status"));
  std::istringstream lines(bound.out);
  std::set<std::string> cores;
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.find_first_of(",-") == std::string::npos);
    CHECK(cores.insert(line).second);
  }
  CHECK(std::to_string(cores.size()) + "\n" == alone);
}

TEST_CASE("the exit code of ronde run is that of the rank that failed first") {
  struct Row {
    const char* script;
    int exit_code;
    const char* text;
  };
  for (const Row& row : {Row{"exit 0", 0, ""},
                         Row{"test $RANK = 0 || exit 3", 3, "rank 1 on localhost: exit code 3"},
                         Row{"echo last words; test $RANK = 1 || kill -11 $$", 139,
                             "rank 0 on localhost: signal 11 (Segmentation fault)\n"},
                         Row{"test $RANK = 0 || kill -9 $$", 137, "for want of memory"}}) {
    const auto result = run_script({"-n", "2"}, row.script);
    INFO(row.script << ": " << result.err);
    CHECK(result.exit_code == row.exit_code);
    CHECK_THAT(result.err, Contains(row.text));
  }
}

TEST_CASE("ronde run names the rank that failed its group, and waits while the others save") {
  struct Row {
    const char* how;
    int exit_code;
    const char* text;
  };
  for (const Row& row : {Row{"kill", 137, "signal 9 (Killed)"},
                         Row{"quiet", 1, "exit code 0, but without ronde::shutdown()"},
                         Row{"code", 3, "exit code 3"}}) {
    const TemporaryFolder folder;
    const auto result =
        ended(row.exit_code, run_ranks_by_command({"-n", "3", "--log-dir", folder / "logs"},
                                                  {RUN_JOB, folder.path(), "20", "1", row.how}));
    CHECK_THAT(result.err, Contains("; 6 steps; last checkpoint: step 5"));
    CHECK_THAT(result.err, Contains("logs: " + (folder / "logs/attempt-0").string()));
    CHECK_THAT(result.err, Contains("first rank 1 on localhost: " + std::string(row.text)));
    CHECK_THAT(result.err, Contains("| rank 1 fails: " + std::string(row.how)));
    CHECK_THAT(result.err, Contains("last checkpoint: step 5; it names rank 1"));
    CHECK(read_text(folder / "survived.0") == "1");
    CHECK(read_text(folder / "survived.2") == "1");
  }
}

TEST_CASE("ronde run ends a rank that hangs, which the others name") {
  const TemporaryFolder folder;
  const auto result =
      ended(9, run_ranks_by_command({"-n", "3", "--grace", "2", "--env", "RONDE_STALL_WARN_S=1",
                                     "--env", "RONDE_STALL_ABORT_S=4"},
                                    {RUN_JOB, folder.path(), "20", "1", "stop"}));
  CHECK_THAT(result.err, Contains("they are ended") && Contains("first rank 1 on localhost: "));
  CHECK(read_text(folder / "survived.0") == "1");
  CHECK(read_text(folder / "survived.1") == "1");
}

TEST_CASE("a rank that ends well before it joins the others has failed them") {
  const TemporaryFolder folder;
  const auto result = ended(1, run_ranks_by_command({"-n", "2", "--env", "RONDE_INIT_TIMEOUT_S=3"},
                                                    {RUN_JOB, folder.path(), "20", "1", "early"}));
  CHECK_THAT(result.err, Contains("first rank 1 on localhost: exit code 0, before the others"));
}

TEST_CASE("a signal to ronde run lets ranks save and leave") {
  const TemporaryFolder folder;
  RunCommand run({"-n", "2", "--max-restarts", "3", "--", RUN_JOB, folder.path()});
  run.wait_for("rank 0 of 2");
  run.wait_for("rank 1 of 2");
  // As where a cluster signals a launcher and all that it has started.
  const auto begun = std::chrono::steady_clock::now();
  run.signal(SIGTERM);
  run.wait_for("the ranks are told of Terminated");
  run.signal(SIGTERM);
  CHECK(run.end() == 128 + SIGTERM);
  const auto lasted = std::chrono::steady_clock::now() - begun;
  INFO(run.text());
  CHECK_THAT(run.text(), Contains("the ranks are told of Terminated") && !Contains("restart"));
  // If the launcher reads the signal a second after the first, it is another one, which kills them.
  const bool have_left = fs::exists(folder / "left.0") && fs::exists(folder / "left.1");
  if (!have_left && lasted >= std::chrono::seconds(1)) return;
  CHECK(read_text(folder / "left.0") == read_text(folder / "left.1"));
}

TEST_CASE("other signals to ronde run reach the ranks, and the job goes on") {
  RunCommand run({"-n", "1", "--", "/bin/bash", "-c",
                  "trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.01; done"});
  run.wait_for("ready");
  run.signal(SIGUSR1);
  CHECK(run.end() == 0);
  CHECK_THAT(run.text(), Contains("[0] heard"));
}

TEST_CASE("a second interrupt kills ranks that do not leave") {
  RunCommand run({"-n", "2", "--", "/bin/sh", "-c", kStubborn});
  run.wait_for("ready\n", 2);
  const Watched ranks(run.numbers_after("pid "));
  run.signal(SIGINT);
  run.wait_for("the same signal again kills them");
  run.signal(SIGINT);
  CHECK(run.end() == 128 + SIGINT);
  ranks.wait_for_ends();
}

TEST_CASE("interrupts end ronde run where nobody reads what its ranks have written") {
  for (const auto screen : {RunCommand::Screen::Pipe, RunCommand::Screen::Terminal}) {
    const TemporaryFolder folder;
    const std::string at = folder.path();
    RunCommand run({"-n", "1", "--", "/bin/sh", "-c",
                    "echo agent $PPID ready; while test ! -e " + at +
                        "/go; do sleep 0.01; done; head -c 400000 /dev/zero"},
                   screen);
    run.wait_for("ready");
    const Watched agent(run.numbers_after("agent "));
    write_bytes(folder / "go", "");
    agent.wait_for_ends();
    const int exit_code = run.end_unread(SIGINT);
    // It may not have heard of the ranks' end yet.
    CHECK((exit_code == 0 || exit_code == 128 + SIGINT));
  }
}

TEST_CASE("ranks that outlive their grace after a failure are ended") {
  const auto result =
      ended(4, run_script({"-n", "2", "--grace", "0.2"}, "test $RANK = 0 && exit 4; " + kSleeper));
  CHECK_THAT(result.err, Contains("rank 0 on localhost: exit code 4; the others have 0.2 s"));
  CHECK_THAT(result.err, Contains("they are ended"));
  CHECK_THAT(result.err, Contains("rank 1 on localhost: signal 15 (Terminated), told to end"));
}

TEST_CASE("ranks that wait in init for one that has failed are ended at once") {
  const TemporaryFolder folder;
  const std::string job = "exec " + std::string(RUN_JOB) + " " + folder.path().string() + " 3";
  for (const std::string late : {"", "sleep 0.3; "}) {  // comes to init after the failure
    const auto result = ended(
        4, run_script({"-n", "2", "--grace", "1000"}, "test $RANK = 0 && exit 4; " + late + job));
    CHECK_THAT(result.err, Contains("rank 1 on localhost: signal 15 (Terminated), told to end"));
  }
}

TEST_CASE("a program that a shell has started has its time to save, too") {
  RunCommand run({"-n", "1", "--", "/bin/sh", "-c",
                  "sh -c 'trap \"sleep 0.3; echo saved; exit 0\" TERM; echo ready; "
                  "while :; do sleep 0.01; done'; exit $?"});
  run.wait_for("ready");
  run.signal(SIGTERM);
  CHECK(run.end() == 128 + SIGTERM);
  CHECK_THAT(run.text(), Contains("[0] saved"));
}

TEST_CASE("a hang-up ends ronde run and its ranks, but not where nohup has them ignore it") {
  const TemporaryFolder folder;
  RunCommand run({"-n", "2", "--grace", "1000", "--", RUN_JOB, folder.path()});
  run.wait_for("rank 0 of 2");
  run.wait_for("rank 1 of 2");
  run.signal(SIGHUP);
  CHECK(run.end() == 128 + SIGHUP);
  CHECK_THAT(run.text(), Contains("signal 1 (Hangup), told to end by this launcher"));
  const auto result = ended(
      0, run_program({"/bin/sh", "-c",
                      "trap '' HUP; exec \"$0\" run -n 1 --plain -- "
                      "/bin/sh -c 'kill -HUP $(cut -d \" \" -f 4 /proc/$PPID/stat); echo goes on'",
                      RONDE_COMMAND}));
  CHECK(result.out == "goes on\n");
}

TEST_CASE("no rank outlives ronde run or its agent, killed") {
  for (const std::string victim : {"launcher", "agent"}) {
    RunCommand run({"-n", "2", "--grace", "0.2", "--", "/bin/sh", "-c",
                    victim == "agent" ? kStubborn : kSleeper});
    run.wait_for("ready\n", 2);
    const Watched ranks(run.numbers_after("pid "));
    const pid_t agent = run.numbers_after("agent ").front();
    if (victim == "launcher") {
      run.signal(SIGKILL);
    } else {
      REQUIRE(kill(agent, SIGKILL) == 0);
      CHECK(run.end() == 1);
      CHECK_THAT(run.text(), Contains("host localhost: the connection to its agent has ended"));
    }
    ranks.wait_for_ends();
  }
}

TEST_CASE("ronde run gives a program its arguments as they are") {
  CHECK_THAT(ended(0, run_command({"run", "--help"})).out, Contains("after --: the program"));
  const Words given = {"[own]", "[1,2]", "--", "-n", "a b", "", "run", "--help"};
  Words words = {"run", "-n", "1", "--plain", "--", "printf", "<%s>\n"};
  words.insert(words.end(), given.begin(), given.end());
  CHECK(ended(0, run_command(words)).out ==
        "<[own]>\n<[1,2]>\n<-->\n<-n>\n<a b>\n<>\n<run>\n<--help>\n");
}

TEST_CASE("what ronde run cannot start is said in a line") {
  const TemporaryFolder folder;
  write_bytes(folder / "empty", "# nobody\n");
  write_bytes(folder / "garbled", "a:2\n$$!\n");
  write_bytes(folder / "text", "no program");
  make_program(folder / "lost", "", "/no/such/shell");
  struct Row {
    Words options;
    std::string program;
    int exit_code;
    std::string text;
  };
  const std::string hostfile = folder / "empty", garbled = folder / "garbled";
  const std::vector<Row> rows = {
      {{}, "true", 2, "give -n, or --hosts with their slots"},
      {{"-n", "2"}, "", 2, "give the program after --"},
      {{"-n", "2", "./edsr"}, "true", 2, "give the program after --: ./edsr stands before it"},
      {{"-n", "0"}, "true", 2, "not in range"},
      {{"-n", "2"}, "no-such-program", 1, "there is no program no-such-program in PATH"},
      {{"-n", "2"}, "./no-such", 1, "there is no program ./no-such (seen from /"},
      {{"-n", "2"}, folder / "text", 1, "that can be executed"},
      {{"-n", "2", "--chdir", "/no/such"}, "true", 1, "there is no folder /no/such"},
      {{"-n", "2", "--min-ranks", "3"}, "true", 2, "--min-ranks 3 is more than -n 2"},
      {{"-n", "2", "--env", "=x"}, "true", 2, "--env =x: it has no name"},
      {{"-n", "2", "--env", "RANK=1"}, "true", 2, "--env RANK=1: ronde run sets RANK itself"},
      {{"-n", "2", "--grace", "nan"}, "true", 2, "is no number"},
      {{"--hosts", "localhost,127.0.0.1"}, "true", 2, "host 127.0.0.1 is there twice"},
      {{"-n", "1"}, folder / "lost", 1, "or the interpreter or loader that it names: No such file"},
      {{"-n", "2", "--env", "NOT_SET_HERE"}, "true", 2, "--env NOT_SET_HERE: it is not set here"},
      {{"-n", "2", "--log-dir", "/proc/logs"}, "true", 1, "--log-dir /proc/logs/attempt-0: "},
      {{"-n", "9", "--hosts", "localhost:4"}, "true", 2, "the hosts have 4 slots: localhost:4"},
      {{"--hosts", "a:0"}, "true", 2, "--hosts: \"a:0\" is no host"},
      {{"--hosts=-oProxyCommand=x"}, "true", 2, "is no host"},
      {{"--hosts", "fd00::2"}, "true", 2, "an IPv6 address in brackets"},
      {{"--hosts", "a,b,a"}, "true", 2, "--hosts: host a is there twice"},
      {{"--hosts", "a", "--hostfile", hostfile}, "true", 2, "give one of --hosts"},
      {{"--hostfile", "/no/file"}, "true", 1, "the hostfile /no/file cannot be read"},
      {{"--hostfile", "/tmp"}, "true", 1, "the hostfile /tmp cannot be read"},
      {{"--hostfile", hostfile}, "true", 2, hostfile + " names no host"},
      {{"--hostfile", garbled}, "true", 2, garbled + ": \"$$!\" is no host"},
      {{"--discover", "echo a:x"}, "true", 2, "what --discover has written: \"a:x\" is no host"},
      {{"--discover", "echo a:1; echo a:1"}, "true", 2, "host a is there twice"},
      {{"--discover", "echo oh >&2; exit 4"}, "true", 1, "failed: exit code 4: oh"},
      {{"--discover", "exec yes"}, "true", 1, "has written more than 1 MiB"},
      {{"--discover", "exec sleep 1000", "--connect-timeout", "0.1"},
       "true",
       1,
       "--discover 'exec sleep 1000' has not ended within 0.1 s"},
      {{"--discover", "cat; exit 4"}, "true", 1, "failed: exit code 4"}};
  for (const Row& row : rows) {
    const Words program = row.program.empty() ? Words{} : Words{row.program};
    const auto result = run_ranks_by_command(row.options, program);
    INFO(row.text << ": " << result.err);
    CHECK(result.exit_code == row.exit_code);
    CHECK_THAT(result.err, Contains(row.text));
    CHECK(result.out.empty());
  }
}

TEST_CASE("ronde run refuses hosts with too few descriptors") {
  const auto result =
      run_program({"/bin/sh", "-c", "ulimit -n 100; exec \"$0\" run -n 2 -- true", RONDE_COMMAND});
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.err,
             Contains("a process may have 100 open files (ulimit -Hn), and 130 are needed"));
}

TEST_CASE("ronde run opens as many files as it may, and ranks keep their limit") {
  const auto result = ended(0, run_program({"/bin/sh", "-c",
                                            "ulimit -Sn 40; exec \"$0\" run -n 12 --plain -- "
                                            "/bin/sh -c 'ulimit -Sn'",
                                            RONDE_COMMAND}));
  CHECK(result.out.size() == 12 * std::string("40\n").size());
}

TEST_CASE("ranks that ronde run starts meet, and a job starts again from its checkpoint") {
  const TemporaryFolder folder;
  const auto result =
      ended(0, run_ranks_by_command({"-n", "3", "--max-restarts", "1", "--backoff", "0.1"},
                                    {RUN_JOB, folder.path(), "12", "2", "kill"}));
  CHECK_THAT(result.err, Contains("rank 2 on localhost: signal 9 (Killed)"));
  CHECK_THAT(result.err, Contains("; restart 1 of 1 in 0.1 s"));
  CHECK_THAT(result.err, Contains("the job is done, after restart 1"));
  CHECK_THAT(result.err, !Contains("is not a variable of Ronde"));
  CHECK_THAT(result.out, Contains("rank 0 of 3 from step 0, data by shm") &&
                             Contains("rank 2 of 3 from step 6"));
  CHECK(read_text(folder / "checkpoint") == "12");
}

TEST_CASE("ronde run gives a job up that fails again and again") {
  const auto limited = run_script({"-n", "1", "--max-restarts", "2", "--backoff", "0.02"},
                                  "echo life $TORCHELASTIC_RESTART_COUNT; exit 5");
  CHECK(limited.exit_code == 5);
  CHECK(limited.out == "[0] life 0\n[0] life 1\n[0] life 2\n");
  CHECK_THAT(limited.err, Contains("restart 1 of 2 in 0.02 s"));
  CHECK_THAT(limited.err, Contains("restart 2 of 2 in 0.04 s"));
  CHECK_THAT(limited.err, Contains("the job has failed after 2 restarts (--max-restarts)"));
  const auto fast =
      ended(5, run_script({"-n", "1", "--max-restarts", "100", "--backoff", "0"}, "exit 5"));
  CHECK_THAT(fast.err, Contains("restart 10 of 100") && !Contains("restart 11 of 100"));
  CHECK_THAT(fast.err, Contains("it is not started again"));
}

#ifdef FAKE_GPU_LIBRARY
TEST_CASE("ronde run warns of ranks that share a GPU") {
  const TemporaryFolder folder;
  fs::copy(FAKE_GPU_LIBRARY, folder / "libcuda.so.1");
  const std::map<std::string, std::string> with_gpus = {{"LD_LIBRARY_PATH", folder.path()}};
  const auto result = ended(0, run_command({"run", "-n", "9", "--", "true"}, with_gpus));
  CHECK_THAT(result.err, Contains("warning: host localhost: ") &&
                             Contains(" visible GPUs for 9 ranks: some share one"));
  CHECK(run_command({"run", "-n", "1", "--", "true"}, with_gpus).err.empty());
}
#endif

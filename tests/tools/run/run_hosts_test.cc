// SPDX-License-Identifier: Apache-2.0
// `ronde run` on several hosts, which a shell script in place of ssh plays on this one.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>

#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"
#include "tests/tools/run/run_command.h"

namespace {

using namespace ronde::test;
using Catch::Contains;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

/// A shell script in place of ssh. $host and "$*", the command, are set.
class Hosts {
 public:
  explicit Hosts(const std::string& script) {
    write_bytes(rsh(), "host=$1; shift; cd '" + folder_.path().string() + "'; " + script + "\n");
  }

  std::string rsh() const { return folder_ / "rsh"; }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

  Words options(Words more, const std::string& script) const {
    more.insert(more.begin(), {"--rsh", "/bin/sh " + rsh(), "--chdir", folder_.path()});
    more.insert(more.end(), {"--", "/bin/sh", "-c", script});
    return more;
  }

  CommandResult run(const Words& more, const std::string& script) const {
    Words words = options(more, script);
    words.insert(words.begin(), "run");
    return run_command(words);
  }

 private:
  const TemporaryFolder folder_;
};

const std::string kStart = "export HOST_NAME=$host; exec sh -c \"$*\"";
// What a host has here, is in the folder of its agent; all ranks are in one folder.
const std::string kPath = "PATH=/proc/self/cwd:/usr/bin:/bin";
const std::string kSay = "echo $RANK of $WORLD_SIZE on $HOST_NAME";

}  // namespace

TEST_CASE("ronde run places ranks by hosts and slots, and shows the key of the job to nobody") {
  const Hosts hosts("echo Welcome to $host; " + kStart);
  const auto result = ended(
      0,
      hosts.run(
          {"--hosts", "a:2,b:1,c:2", "-n", "4"},
          "for file in /proc/[0-9]*/cmdline; do case $(tr '\\0' ' ' <$file 2>/dev/null) in "
          "*$RONDE_JOB_KEY*) echo seen;; esac; done; "
          "echo $RANK: $HOST_NAME, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $GROUP_RANK at $MASTER_ADDR"));
  CHECK_THAT(result.out, Contains("[0] 0: a, 0 of 2, 0 at a\n") &&
                             Contains("[1] 1: a, 1 of 2, 0 at a\n") &&
                             Contains("[2] 2: b, 0 of 1, 1 at a\n") &&
                             Contains("[3] 3: c, 0 of 1, 2 at a\n") && !Contains("seen"));
}

TEST_CASE("ronde run calls ssh by options that ask no question") {
  const Hosts hosts("");
  make_program(hosts / "ssh", "echo \"$@\" >>" + (hosts / "words").string() +
                                  "; while test $1 = -o; do shift 2; done\n"
                                  "shift; exec sh -c \"$*\"");
  const auto result =
      ended(0, run_command({"run", "--connect-timeout", "7.5", "--chdir", hosts / "", "--hosts",
                            "me@a", "--", "/bin/echo", "here"},
                           {{"PATH", (hosts / "").string() + ":/usr/bin:/bin"}}));
  CHECK(result.out == "[0] here\n");
  CHECK_THAT(read_text(hosts / "words"),
             Contains("BatchMode=yes") && Contains("ConnectTimeout=8") && Contains("me@a exec '/"));
}

TEST_CASE("ronde run says of each host why it is of no use") {
  struct Row {
    const char* script;
    const char* text;
  };
  for (const Row& row :
       {Row{"exec sleep 1000", "host b has not answered within 2 s (--connect-timeout)"},
        Row{"echo no route to b >&2; exit 255", "host b has started no agent: no route to b"},
        Row{"echo this is no agent; exit 0", "host b has started no agent: this is no agent"},
        Row{"echo '{\"event\": \"hello\", \"version\": \"0.0.7\"}'; exec sleep 1000",
            "host b has Ronde 0.0.7, but this is 0."},
        Row{"echo '[]'; head -c 9999 /dev/urandom; exit 0", "host b has started no agent"},
        Row{"echo '{\"event\": [1]}'; exec sleep 1000",
            "host b: what should be an agent sends nonsense: "}}) {
    const Hosts hosts("if [ $host = b ]; then " + std::string(row.script) + "; fi; " + kStart);
    const std::string time = Contains("within 2 s").match(row.text) ? "2" : "20";
    const auto alone = hosts.run({"--hosts", "a:1,b:1", "--connect-timeout", time}, kSay);
    INFO(row.text << "\n" << alone.err);
    CHECK(alone.exit_code == 1);
    CHECK(alone.out.empty());
    CHECK_THAT(alone.err, Contains(row.text) && Contains(" of 2 ranks"));
  }
  const Hosts hosts("exit 1");
  CHECK_THAT(run_command({"run", "--rsh", "/no/ssh", "--hosts", "b", "--", "true"}).err,
             Contains("/no/ssh cannot be started: No such file or directory"));
}

TEST_CASE("ronde run starts with fewer ranks where a host does not answer") {
  const Hosts hosts("if [ $host = b ]; then exit 1; fi; " + kStart);
  const auto result = ended(0, hosts.run({"--hosts", "a:2,b:2", "--min-ranks", "2"}, kSay));
  CHECK_THAT(result.out, Contains("0 of 2 on a") && Contains("1 of 2 on a"));
  CHECK_THAT(result.err, Contains("host b has started no agent; the job starts without it"));
}

TEST_CASE("ronde run warns of hosts with another program, and of missing ones it says where") {
  const Hosts hosts("cd $host; " + kStart);
  fs::create_directory(hosts / "a");
  fs::create_directory(hosts / "b");
  for (const std::string place : {"", "a/", "b/"}) {
    make_program(hosts / (place + "program"), "exit 0 # " + place);
  }
  const Words words = {"run",     "--rsh",    "/bin/sh " + hosts.rsh(),
                       "--chdir", hosts / "", "--env",
                       kPath,     "--hosts",  "a,b",
                       "--",      "program"};
  const auto other = ended(0, run_command(words));
  CHECK_THAT(other.err, Contains("program on host b is another file than on host a"));
  fs::remove(hosts / "b/program");
  const auto missing = ended(1, run_command(words));
  CHECK_THAT(missing.err, Contains("host b: there is no program program in PATH"));
}

TEST_CASE("a connection that is lost ends the ranks of its host") {
  const Hosts hosts(
      "exec bash -c '( echo $BASHPID >cat.$0; exec cat ) | \"$@\"' $host sh -c \"$*\"");
  RunCommand run(
      hosts.options({"--hosts", "a,b", "--grace", "0.2"}, "echo pid $$ ready; exec sleep 1000"));
  run.wait_for("ready\n", 2);
  const Watched ranks(run.numbers_after("pid "));
  REQUIRE(kill(std::stoi(read_text(hosts / "cat.b")), SIGKILL) == 0);
  CHECK(run.end() == 1);
  ranks.wait_for_ends();
  CHECK_THAT(run.text(),
             Contains("first rank 1 on b: host b: the connection to its agent has ended"));
}

TEST_CASE("a host that no longer answers is given up by name once the others have failed") {
  const Hosts hosts(kStart);
  RunCommand run(
      hosts.options({"--hosts", "a,b", "--grace", "0.2"},
                    "test $HOST_NAME = a || { kill -STOP $PPID; touch stopped; exec sleep 1000; }; "
                    "while test ! -e stopped; do sleep 0.01; done; exit 4"));
  CHECK(run.end() == 4);
  CHECK_THAT(run.text(), Contains("rank 1 on b: host b does not answer: ranks may be left there"));
}

TEST_CASE("ronde run goes on with the hosts that are left, and with those that have come") {
  const Hosts hosts("test ! -e down.$host || exit 1; " + kStart);
  const auto fewer = ended(
      0, hosts.run({"--hosts", "a,b", "--max-restarts", "1", "--min-ranks", "1", "--backoff", "0"},
                   kSay + "; test $HOST_NAME = a || { touch down.b; exit 1; }"));
  CHECK_THAT(fewer.out, Contains("1 of 2 on b") && Contains("0 of 1 on a"));
  for (const std::string option : {"--hostfile", "--discover"}) {
    write_bytes(hosts / "hosts", "a\nd slots=1\n");
    const std::string file = hosts / "hosts";
    const auto back = ended(
        0,
        hosts.run({option, option == "--hostfile" ? file : "cat " + file, "--max-restarts", "1",
                   "--backoff", "0"},
                  kSay + "; test $HOST_NAME != d || { echo a >hosts; echo c >>hosts; exit 1; }"));
    CHECK_THAT(back.out, Contains("1 of 2 on d") && Contains("1 of 2 on c"));
  }
}

TEST_CASE("ronde run waits for hosts, and takes the list of before if there is nonsense") {
  const Hosts hosts(kStart);
  write_bytes(hosts / "hosts", "a:2\n");
  const std::string discover = "cat " + (hosts / "hosts").string();
  const Words options = {"--discover", discover, "--max-restarts", "1",
                         "--backoff",  "0",      "--wait",         "0"};
  const std::string script = kSay + " life $RONDE_RESTART; test $RONDE_RESTART = 1 || ";
  const auto none = hosts.run(options, script + "{ echo a:1 >hosts; exit 7; }");
  CHECK(none.exit_code == 7);
  CHECK_THAT(none.err, Contains("no more hosts have come within --wait: there is room for 1 of 2"));
  CHECK_THAT(none.err, Contains("on a: exit code 7") && Contains(" of 2 on a life 0"));
  write_bytes(hosts / "hosts", "a:2\n");
  const auto lies = ended(0, hosts.run(options, script + "{ echo a:0 >hosts; exit 1; }"));
  CHECK_THAT(lies.err,
             Contains("\"a:0\" is no host") && Contains("the hosts of before are taken: a:2"));
  CHECK_THAT(lies.out, Contains("1 of 2 on a life 1"));
}

TEST_CASE("ronde run waits for hosts that are listed, but do not answer") {
  const Hosts hosts(
      "test $host = a || test ! -e down || { echo x >>tries; test $(wc -l <tries) -gt 4 || exit 1; "
      "}; " +
      kStart);
  const std::string script = kSay +
                             " life $RONDE_RESTART; test $RONDE_RESTART = 1 || "
                             "{ trap '' TERM; test $HOST_NAME = a || touch down; "
                             "while test ! -e down; do sleep 0.01; done; exit 1; }";
  const Words options = {"--hosts", "a,b", "--max-restarts", "1", "--backoff", "0"};
  const auto back = ended(0, hosts.run(options, script));
  CHECK_THAT(back.err, Contains("there is room for 1 of 2 ranks; tries again in"));
  CHECK_THAT(back.out, Contains("1 of 2 on b life 1"));
  fs::remove(hosts / "tries");
  fs::remove(hosts / "down");
  Words impatient = options;
  impatient.insert(impatient.end(), {"--wait", "0"});
  const auto gone = ended(1, hosts.run(impatient, script));
  CHECK_THAT(gone.err, Contains("given up, as --wait has passed") && Contains("rank 1 on b: exit"));
}

TEST_CASE("ronde run --grow starts a job again with hosts that have come or come back") {
  const Hosts hosts("test ! -e down.$host || { echo x >>tries; exit 1; }; " + kStart);
  const std::string file = hosts / "hosts";
  struct Row {
    Words options;
    const char* change;  // by the rank that is alone
    const char* place;
  };
  for (const Row& row :
       {Row{{"--hosts", "a,b"}, "test $(wc -l <tries) -lt 3 || rm -f down.b", "1 of 2 on b"},
        Row{{"--hostfile", file}, "echo a:2 >hosts", "1 of 2 on a"},
        Row{{"--discover", "cat " + file}, "printf 'a\\nc\\n' >hosts", "1 of 2 on c"}}) {
    CAPTURE(row.place);
    write_bytes(hosts / "hosts", "a\n");
    write_bytes(hosts / "down.b", "");
    Words options = {"-n", "2", "--min-ranks", "1", "--grow", "0.05"};
    options.insert(options.end(), row.options.begin(), row.options.end());
    const auto result =
        ended(0, hosts.run(options, kSay +
                                        " life $RONDE_RESTART; test $WORLD_SIZE = 1 || exit 0; "
                                        "trap 'echo has left; exit 0' TERM; while sleep 0.05; do " +
                                        std::string(row.change) + "; done"));
    CHECK_THAT(result.out, Contains("0 of 1 on a life 0") && Contains("has left") &&
                               Contains(row.place + std::string(" life 1")));
    CHECK_THAT(result.err, Contains("started again with 2 ranks in place of 1"));
  }
}

TEST_CASE("ronde run --grow ends no job for fewer hosts, nor for good because of a new one") {
  const Hosts lying("test $host = a || echo x >>tries; " + kStart);
  write_bytes(lying / "hosts", "a:2\n");
  const auto stays = ended(
      0, lying.run({"-n", "3", "--min-ranks", "2", "--grow", "0.05", "--hostfile", lying / "hosts"},
                   kSay + " life $RONDE_RESTART; echo c >hosts; touch tries; "
                          "while test $(wc -l <tries) -lt 3; do sleep 0.05; done"));
  CHECK_THAT(stays.out, Contains("1 of 2 on a life 0") && !Contains("life 1"));

  const Hosts hosts("test ! -e down.$host || exit 1; cd $host; " + kStart);
  fs::create_directory(hosts / "a");
  fs::create_directory(hosts / "b");
  write_bytes(hosts / "down.b", "");
  make_program(hosts / "a/program", "");
  make_program(hosts / "program",
               "echo life $RONDE_RESTART\ntest $RONDE_RESTART = 0 || exit 0\n"
               "rm down.b; trap 'exit 0' TERM; while sleep 0.05; do :; done");
  const auto goes_on =
      ended(0, run_command({"run", "--rsh", "/bin/sh " + hosts.rsh(), "--chdir", hosts / "",
                            "--env", kPath, "--hosts", "a,b", "--min-ranks", "1", "--grow", "0.05",
                            "--backoff", "0", "--", "program"}));
  CHECK_THAT(goes_on.out, Contains("life 1"));
  CHECK_THAT(goes_on.err,
             Contains("there is no program program in PATH") && Contains("host b is set aside"));
}

TEST_CASE("the last host that answers is not set aside") {
  const Hosts hosts("test $host = a || exit 1; " + kStart);
  const auto result = ended(
      0, hosts.run({"--hosts", "a,b", "--max-restarts", "4", "--min-ranks", "1", "--backoff", "0"},
                   kSay + "; test $RONDE_RESTART = 4 || exit 1"));
  CHECK_THAT(result.err, !Contains("is set aside"));
}

TEST_CASE("ronde run sets a host aside that keeps failing") {
  const Hosts hosts(kStart);
  const auto result = ended(
      0, hosts.run({"--hosts", "a,b", "--max-restarts", "5", "--min-ranks", "1", "--backoff", "0"},
                   kSay + "; test $HOST_NAME = a || exit 1"));
  CHECK_THAT(result.err, Contains("host b is set aside: it was to blame for 3 failures"));
  CHECK_THAT(result.err, Contains("restart 3 of 5") && !Contains("restart 4 of 5"));
  CHECK_THAT(result.out, Contains("0 of 1 on a"));
}

TEST_CASE("a host that was set aside is taken back where the job needs it") {
  struct Row {
    const char* change;  // by the rank on host a that is alone
    const char* text;
  };
  for (const Row& row : {Row{"touch down.a", "host b is taken back: too few others answer"},
                         Row{"echo b >hosts", "host b is taken back: the others are too few"}}) {
    const Hosts hosts("test ! -e down.$host || exit 1; " + kStart);
    write_bytes(hosts / "hosts", "a\nb\n");
    const auto result = ended(
        0, hosts.run({"--hostfile", hosts / "hosts", "-n", "2", "--min-ranks", "1",
                      "--max-restarts", "5", "--backoff", "0"},
                     kSay +
                         "; test $HOST_NAME.$RONDE_RESTART != b.4 || exit 0; test $WORLD_SIZE = 2 "
                         "&& { test $HOST_NAME = a; exit; }; " +
                         row.change + "; exit 1"));
    CHECK_THAT(result.err, Contains("host b is set aside") && Contains(row.text));
    CHECK_THAT(result.out, Contains("0 of 1 on a") && Contains("0 of 1 on b"));
  }
}

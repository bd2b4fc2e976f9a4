// SPDX-License-Identifier: Apache-2.0
// Jobs of two ranks where the system forbids, limits or disturbs: each goes on with right sums, or
// every rank that lives says what is wrong (docs/notes/hostile_places.md).
#include <sys/syscall.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ronde/ronde.h"
#include "tests/support/processes/beside.h"
#include "tests/support/processes/command.h"
#include "tests/support/processes/temporary_folder.h"

namespace ronde::test {
namespace {

using Catch::Contains;
using Variables = std::map<std::string, std::string>;

const std::string kRun =
    std::string("timeout -k 5 100 ") + RONDE_COMMAND + " run -n 2 --grace 10 -- ";
const std::string kJob = std::string(HOSTILE_JOB) + " ";

CommandResult shell(const std::string& line, Variables variables = {}) {
  variables.merge(Variables{{"OMP_NUM_THREADS", "1"}, {"RONDE_INIT_TIMEOUT_S", "60"}});
  return run_program({"/bin/bash", "-c", line}, variables);
}

const std::string kKilled = "plain 'test $RANK = 0 || kill -KILL $PPID'";

/// The words before those of a program, in which these system calls then fail.
std::string without(int error, const std::vector<long>& calls) {
  std::string list;
  for (const long call : calls) list += (list.empty() ? "" : ",") + std::to_string(call);
  return kJob + "without " + std::to_string(error) + " " + list + " ";
}

/// Without descriptors of this test's starter.
std::string limited(const std::string& limit, const std::string& place) {
  return kRun +
         "bash -c 'for f in /proc/$$/fd/*; do test ${f##*/} -lt 3 || eval \"exec ${f##*/}>&-\"; "
         "done; "
         "ulimit " +
         limit + "; exec " + kJob + place + "'";
}

int lines_with(const std::string& text, const std::string& words) {
  std::istringstream lines(text);
  int found = 0;
  for (std::string line; std::getline(lines, line);) {
    found += line.find(words) != std::string::npos ? 1 : 0;
  }
  return found;
}

void check_trained(const CommandResult& result, int jobs = 1) {
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  CHECK(lines_with(result.out, "rank 0 has trained") == jobs);
  CHECK(lines_with(result.out, "rank 1 has trained") == jobs);
}

/// Both ranks have caught an error with these words.
void check_refused(const CommandResult& result, const std::string& words) {
  INFO(result.out << result.err);
  CHECK(result.exit_code == 9);
  for (const std::string rank : {"[0] caught: ", "[1] caught: "}) {
    const std::size_t at = result.err.find(rank);
    REQUIRE(at != std::string::npos);
    CHECK_THAT(result.err.substr(at, result.err.find('\n', at) - at), Contains(words));
  }
}

/// Rank 1 has ended so, and rank 0 tells of it.
void check_death(const CommandResult& result, const std::string& end) {
  INFO(result.out << result.err);
  CHECK(result.exit_code > 128);
  CHECK_THAT(result.err, Contains("[0] caught: rank 1 was lost: ") &&
                             Contains("first rank 1 on localhost: " + end));
}

TEST_CASE("a job goes on without the system calls that it can do without") {
  const std::vector<long> optional = {
      SYS_pidfd_open,  SYS_madvise,        SYS_mremap,      SYS_shmget,           SYS_shmat,
      SYS_mbind,       SYS_set_mempolicy,  SYS_membarrier,  SYS_get_mempolicy,    SYS_close_range,
      SYS_userfaultfd, SYS_uname,          SYS_sched_yield, SYS_process_vm_readv, SYS_rseq,
      SYS_sigaltstack, SYS_io_uring_setup, SYS_shutdown,    SYS_process_vm_writev};
  for (const int error : {EPERM, ENOSYS}) {
    check_trained(shell(kRun + without(error, optional) + kJob + "plain"));
  }
  // glibc takes clone() then, as it does in containers with an old filter.
  check_trained(shell(kRun + without(ENOSYS, {SYS_clone3}) + kJob + "plain"));
  // A death is seen by the end of the connection alone.
  check_death(shell(kRun + without(ENOSYS, {SYS_pidfd_open}) + kJob + kKilled),
              "signal 9 (Killed)");
}

TEST_CASE("every rank says which system call it misses, and what does without") {
  const std::vector<std::pair<long, std::string>> needed = {
      {SYS_memfd_create,
       "rank 0 cannot share memory with the other ranks of its host "
       "(RONDE_CPU_BACKEND=mpi, or fabric where there is no MPI, needs none): "
       "memfd_create: Operation not permitted"},
      {SYS_sendmsg, "sending a file descriptor to local rank 1: Operation not permitted"},
      {SYS_eventfd2, "eventfd failed: Operation not permitted"},
      {SYS_epoll_create1, "epoll_create1 failed: Operation not permitted"}};
  for (const auto& [call, words] : needed) {
    check_refused(shell(kRun + without(EPERM, {call}) + kJob + "deaf"), words);
  }
  check_refused(shell(kRun + without(EAGAIN, {SYS_clone3}) + kJob + "deaf"),
                "cannot start the thread of this rank that moves data: Resource temporarily "
                "unavailable. Allow the job more threads (ulimit -u, or pids.max");
  const CommandResult no_files = shell(kRun + without(EPERM, {SYS_getdents64}) + kJob + "plain");
  CHECK_THAT(no_files.err, Contains("[0] caught: rank 0 cannot await the others: it cannot read "
                                    "/proc/self/fd: Operation not permitted"));
  const CommandResult launcher = shell(without(EPERM, {SYS_memfd_create}) + kRun + kJob + "plain");
  CHECK(launcher.exit_code == 1);
  CHECK_THAT(launcher.err, Contains("there is no shared memory for the ranks: memfd_create"));
  if (!has_feature("ucx")) return;
  const CommandResult fabric = shell(kRun + without(EPERM, {SYS_memfd_create}) + kJob + "plain",
                                     {{"RONDE_CPU_BACKEND", "fabric"}});
  check_trained(fabric);
  CHECK(lines_with(fabric.out, "data by fabric") == 2);
}

TEST_CASE("neither a small or unwritable /dev/shm nor a lack of TMPDIR matters to a job") {
  const std::string in_place = "unshare -rm bash -c 'mount -t tmpfs -o size=64k none ";
  if (shell(in_place + "/dev/shm'").exit_code != 0) {
    std::puts("left out: mount namespaces cannot be made here");
    return;
  }
  check_trained(shell(in_place + "/dev/shm && " + kRun + kJob + "plain'"));
  check_trained(shell(in_place + "/dev/shm && mount -o remount,ro /dev/shm && " + kRun +
                      "env TMPDIR=/nonexistent " + kJob + "plain'"));
}

TEST_CASE("limits of a process are kept, or named on every rank") {
  check_refused(shell(limited("-n 8", "deaf")), "and may have 8 (ulimit -Hn): raise that limit");
  const CommandResult few = shell(limited("-n 5", "plain"));
  CHECK_THAT(few.err, Contains("[0] caught: rank 0 cannot await the others: it needs"));
  check_trained(shell(limited("-n 16", "plain")));
  const CommandResult later = shell(limited("-n 64", "descriptors"));
  check_trained(later);
  CHECK(lines_with(later.err, "too many open files (ulimit -n is 64)") >= 2);
  const CommandResult memory = shell(limited("-v 1000000", "plain"));
  check_trained(memory);
  CHECK_THAT(memory.err, Contains("mmap: Cannot allocate memory. So there is no symmetric heap"));
}

TEST_CASE("a rank that its control group ends for want of memory is told as a death") {
  const CommandResult result = shell(
      "d=/sys/fs/cgroup/memory f=memory.limit_in_bytes; test -d $d || d=/sys/fs/cgroup "
      "f=memory.max\n"
      "d=$d/ronde-test-$$; mkdir $d && echo 200M >$d/$f || { rmdir $d; exit 77; }\n"
      "for f in memory.swap.max=0 memory.memsw.limit_in_bytes=200M; do\n"
      "test ! -e $d/${f%=*} || echo ${f#*=} >$d/${f%=*}; done\n" +
      kRun + "bash -c \"test \\$RANK = 0 || echo \\$\\$ >$d/cgroup.procs; exec " + kJob +
      "memory\"\nstatus=$?; rmdir $d; exit $status");
  if (result.exit_code == 77) {
    std::puts("left out: control groups of memory cannot be made here");
    return;
  }
  check_death(result, "signal 9 (Killed), by a user, or by the system for want of memory");
}

TEST_CASE("two jobs of one user do not disturb each other") {
  const TemporaryFolder folder;
  check_trained(shell(kRun + kJob + "plain & " + kRun + kJob + "plain && wait $!",
                      {{"RONDE_TOP", "1"},
                       {"RONDE_TIMELINE", folder / "timeline"},
                       {"RONDE_PROFILE", folder / "run.json"},
                       {"RONDE_METRICS", folder / "run.prom"}}),
                2);
  for (const char* const file : {"timeline/rank0.json", "timeline/rank1.json", "run.json"}) {
    CHECK(nlohmann::json::accept(read_text(folder / file)));
  }
}

TEST_CASE("programs that a rank executes inherit none of Ronde's files") {
  const TemporaryFolder folder;
  write_bytes(folder / "list", "ls -l /proc/self/fd >$0.$1.$RANK");
  const std::string list = "sh " + (folder / "list").string();
  check_trained(
      shell(kRun + "bash -c '" + list + " before; exec " + kJob + "plain \"" + list + " within\"'",
            {{"RONDE_TOP", "1"},
             {"RONDE_DUMP", folder / "dump"},
             {"RONDE_TIMELINE", folder / "timeline"},
             {"RONDE_METRICS", folder / "run.prom"}}));
  for (const std::string rank : {"0", "1"}) {
    const std::string within = read_text(folder / ("list.within." + rank));
    const std::string before = read_text(folder / ("list.before." + rank));
    INFO(before << within);
    CHECK(lines_with(within, "->") == lines_with(before, "->"));
  }
}

TEST_CASE("a rank goes on through signals, a stop, and steps of the wall clock") {
  for (const std::string place : {"storm", "'restarting storm'"}) {
    const CommandResult result = shell(kRun + kJob + place, {{"RONDE_TOP", "1"}});
    check_trained(result);
    CHECK(lines_with(result.out, "many signals") == 2);
  }
  check_trained(shell(kRun + kJob +
                      "plain 'test $RANK = 0 || { kill -STOP $PPID; until grep -q ^State:.T "
                      "/proc/$PPID/status; do :; done; kill -CONT $PPID; }'"));
  const CommandResult clock = shell(kRun + kJob + "clock", {{"RONDE_STALL_WARN_S", "50"}});
  check_trained(clock);
  CHECK_THAT(clock.err, !Contains("stalled operations"));
}

TEST_CASE("a limit on files costs the timeline, or the rank that lets its signal act") {
  const TemporaryFolder folder;
  const Variables variables = {{"RONDE_TIMELINE", folder.path()}};
  const std::string limit = "plain 'prlimit --fsize=4096 --core=0 --pid $PPID'";
  const CommandResult ignored = shell("trap \"\" XFSZ; " + kRun + kJob + limit, variables);
  check_trained(ignored);
  CHECK(lines_with(ignored.err, "cannot be written (File too large)") == 2);
  const CommandResult ended = shell(kRun + kJob + limit, variables);
  CHECK_THAT(ended.err, Contains("on localhost: signal 25 (File size limit exceeded)"));
}

TEST_CASE("objects with static storage may call Ronde as they are destroyed") {
  const CommandResult result = shell(kRun + kJob + "static");
  check_trained(result);
  CHECK(lines_with(result.out, "destroyed") == 4);
}

TEST_CASE("ronde run tells of an output that nobody can have, and not of one that nobody wants") {
  const CommandResult full = shell(kRun + kJob + "plain >/dev/full");
  CHECK(full.exit_code == 0);
  CHECK_THAT(full.err, Contains("standard output cannot be written (No space left on device)"));
  const CommandResult closed = shell("set -o pipefail; " + kRun + kJob + "plain | true");
  CHECK(closed.exit_code == 0);
  CHECK_THAT(closed.err, !Contains("standard output"));
}

}  // namespace
}  // namespace ronde::test

// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "tests/support/processes/beside.h"
#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"

namespace {

using namespace ronde::test;
using Catch::Contains;

constexpr const char* kNoSpace = "No space left on device";

/// A disk of a given size in a mount namespace of its own.
class SmallDisk {
 public:
  explicit SmallDisk(std::string size) : size_(std::move(size)) {}

  static bool possible() {
    if (run_program({"/usr/bin/unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"})
            .exit_code == 0) {
      return true;
    }
    std::puts("left out: mount namespaces cannot be made here");
    return false;
  }

  /// Runs lines of shell there.
  CommandResult run(const std::string& lines,
                    const std::map<std::string, std::string>& environment) {
    const std::string mount =
        "mount -t tmpfs -o size=" + size_ + " none " + path("") + " || exit 9\n";
    return run_program({"/usr/bin/unshare", "-rm", "/bin/bash", "-c", mount + lines}, environment);
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
  std::string size_;
};

/// The job on two ranks as a line of shell.
std::string job(const std::string& options) {
  return "timeout -k 5 120 " TEST_LAUNCHER_PROGRAM " " TEST_LAUNCHER_COUNT " 2 " +
         std::string(TEST_PROGRAM) + " " + options + " || exit 8\n";
}

/// Exactly one warning says that `path` cannot be written, and why.
void check_said_once(const std::string& log, const std::string& path) {
  const std::string file = path + " cannot be written";
  INFO(file);
  const std::size_t found = log.find(file);
  REQUIRE(found != std::string::npos);
  CHECK(log.find(file, found + 1) == std::string::npos);
  CHECK_THAT(log.substr(found, log.find('\n', found) - found), Contains(kNoSpace));
}

}  // namespace

TEST_CASE("training goes on where the disk is full, and each file is named once") {
  if (!SmallDisk::possible()) return;
  SmallDisk disk("64k");
  const std::string fill = "cat /dev/zero 2>/dev/null >" + disk.path("zeros") + "\n";
  const auto result =
      ended(0, disk.run(fill + job("30 slow-rank"), {{"OMP_NUM_THREADS", "1"},
                                                     {"RONDE_TIMELINE", disk.path("timeline")},
                                                     {"RONDE_PROFILE", disk.path("run.json")},
                                                     {"RONDE_METRICS", disk.path("run.prom")},
                                                     {"RONDE_DUMP", disk.path("dump")},
                                                     // A tenth of what the slow rank computes.
                                                     {"RONDE_STALL_WARN_S", "0.002"}}));
  CHECK_THAT(result.err, Contains(" have waited up to "));
  for (const char* const name :
       {"timeline/rank0.json", "timeline/rank1.json", "run.rank0.prom", "run.rank1.prom",
        "dump/rank0.json", "dump/rank1.json", "run.json"}) {
    check_said_once(result.err, disk.path(name));
  }
}

TEST_CASE("a timeline can be read up to where the disk was full") {
  if (!SmallDisk::possible()) return;
  SmallDisk disk("1m");
  const TemporaryFolder elsewhere;
  const std::string timeline = disk.path("timeline");
  const std::string merge = std::string(RONDE_COMMAND) + " prof merge " + timeline + " -o ";
  const auto result = ended(0, disk.run(job("60") + merge + (elsewhere / "all.json").string(),
                                        {{"OMP_NUM_THREADS", "1"}, {"RONDE_TIMELINE", timeline}}));
  for (const char* const name : {"/rank0.json", "/rank1.json"}) {
    check_said_once(result.err, timeline + name);
  }
  CHECK_THAT(result.out,
             Contains("'s file is cut after ") && Contains(" events of 2 ranks on rank 0's clock"));
}

// SPDX-License-Identifier: Apache-2.0
#include "ronde/cores.h"

#include <catch2/catch.hpp>
#include <limits>
#include <utility>
#include <vector>

#include "tests/support/processes/temporary_folder.h"

namespace {

using ronde::Cores;
using ronde::cpu_quota;
using ronde::test::TemporaryFolder;
using ronde::test::write_bytes;

constexpr int kNoQuota = std::numeric_limits<int>::max();

/// The quota in a root folder that holds these files, given by path and content.
int quota_among(const std::vector<std::pair<std::string, std::string>>& files) {
  const TemporaryFolder root;
  for (const auto& [path, content] : files) {
    std::filesystem::create_directories((root / path).parent_path());
    write_bytes(root / path, content);
  }
  return cpu_quota(root.path());
}

const std::string kCgroup = "proc/self/cgroup";
const std::string kMounts = "proc/self/mountinfo";
const std::string kMountsOfV2 =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
    "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:2 - cgroup2 cgroup2 rw,nsdelegate\n";
const std::string kMountsOfV1 =
    "31 22 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

}  // namespace

TEST_CASE("a quota of version 2 is the least of the own group and those around it") {
  const std::string top = "sys/fs/cgroup/";
  const auto quota = [&](const std::string& slice, const std::string& job) {
    return quota_among({{kCgroup, "1:name=systemd:/elsewhere\n0::/slice/job\n"},
                        {kMounts, kMountsOfV2},
                        {top + "slice/cpu.max", slice},
                        {top + "slice/job/cpu.max", job},
                        {top + "elsewhere/cpu.max", "100000 100000\n"},
                        {top + "slice/job/child/cpu.max", "100000 100000\n"}});
  };
  CHECK(quota("max 100000\n", "max 100000\n") == kNoQuota);
  CHECK(quota("max 100000\n", "400000 100000\n") == 4);
  CHECK(quota("300000 100000\n", "400000 100000\n") == 3);
  CHECK(quota("max 100000\n", "350000 100000\n") == 3);
  CHECK(quota("max 100000\n", "5000 10000\n") == 1);
  CHECK(quota("max 100000\n", "") == kNoQuota);
}

TEST_CASE("a quota of version 1 is that of the hierarchy of CPU time") {
  const std::string top = "sys/fs/cgroup/cpu,cpuacct/";
  const auto quota = [&](const std::string& around, const std::string& own) {
    return quota_among({{kCgroup, "5:cpuset:/a\n4:cpu,cpuacct:/a/b\n0::/\n"},
                        {kMounts, kMountsOfV1},
                        {top + "cpu.cfs_quota_us", "-1\n"},
                        {top + "cpu.cfs_period_us", "100000\n"},
                        {top + "a/cpu.cfs_quota_us", around},
                        {top + "a/cpu.cfs_period_us", "50000\n"},
                        {top + "a/b/cpu.cfs_quota_us", own},
                        {top + "a/b/cpu.cfs_period_us", "100000\n"}});
  };
  CHECK(quota("-1\n", "-1\n") == kNoQuota);
  CHECK(quota("-1\n", "200000\n") == 2);
  CHECK(quota("350000\n", "900000\n") == 7);
}

TEST_CASE("a container finds its quota where its own group is mounted") {
  const std::string mounts = "40 1 0:26 /docker/7 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
  const std::pair<std::string, std::string> own = {"sys/fs/cgroup/cpu.max", "200000 100000\n"};
  CHECK(quota_among({{kCgroup, "0::/docker/7\n"}, {kMounts, mounts}, own}) == 2);
  CHECK(quota_among({{kCgroup, "0::/docker/7/job\n"},
                     {kMounts, mounts},
                     {"sys/fs/cgroup/job/cpu.max", "100000 100000\n"},
                     own}) == 1);
  // A namespace of control groups of its own, in which this process is outside or at the top.
  for (const std::string group : {"/", "/../other"}) {
    CHECK(quota_among({{kCgroup, "0::" + group + "\n"}, {kMounts, kMountsOfV2}, own}) == 2);
  }
}

TEST_CASE("a machine without control groups has no quota") {
  CHECK(quota_among({}) == kNoQuota);
  CHECK(quota_among({{kCgroup, "0::/\n"}, {kMounts, "22 1 8:1 / / rw - ext4 /dev/vda1 rw\n"}}) ==
        kNoQuota);
  CHECK(quota_among({{kMounts, "nonsense\n\n - cgroup2"}}) == kNoQuota);
}

TEST_CASE("cores that processes share count once, and a quota limits their number") {
  Cores cores = {.mask = "\x03"};
  CHECK(cores.count() == 2);
  cores.add({.mask = "\x06"});
  CHECK(cores.count() == 3);
  cores.add({.mask = std::string("\0\0\xff", 3)});
  CHECK(cores.count() == 11);
  cores.add({.mask = "\x01", .quota = 4});
  cores.add({.mask = "\x01", .quota = 6});
  CHECK(cores.count() == 4);
  CHECK(Cores().count() == 1);
}

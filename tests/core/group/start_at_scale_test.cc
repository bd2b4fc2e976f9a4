// SPDX-License-Identifier: Apache-2.0
// The load of a large job's start on rank 0.

#include <catch2/catch.hpp>

#include "backends/socket/sockets.h"
#include "tests/support/processes/file_limit.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/simulated_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

rlimit file_limit() {
  rlimit limit = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return limit;
}

}  // namespace

TEST_CASE("a start of 10,000 ranks sends no configuration, but a digest of it") {
  constexpr std::uint64_t kSize = 10'000;
  SimulatedRanks::Script script;
  for (std::uint64_t rank = 0; rank < kSize; ++rank) {
    script.host_of.push_back(static_cast<int>(rank / 8));
  }
  const std::string fingerprint = group_wide_fingerprint(test_config());
  script.exchanges = {config_digest(fingerprint), "", ""};
  const inproc::Group group(script.host_of);
  const auto traffic = std::make_shared<SimulatedTraffic>();
  RuntimeOptions options = options_of(group, 0);
  options.make_transport = [&] { return std::make_unique<SimulatedRanks>(script, traffic); };
  const Runtime runtime(std::move(options));
  const std::uint64_t children = make_topology(0, script.host_of).children().size();
  CHECK(children == 11 + 7);
  CHECK(traffic->received == 3 * (kSize - 1));
  CHECK(traffic->received_bytes < traffic->received * 60);
  CHECK(traffic->sent == 3 * children);
  CHECK(traffic->sent_bytes < traffic->sent * 60);
}

TEST_CASE("the limit on open files is raised where a rank needs more for those that connect") {
  const auto in_use = static_cast<rlim_t>(UniqueFd(::dup(STDERR_FILENO)).get());
  const ResourceLimit limit(RLIMIT_NOFILE, in_use + 10);
  net::make_room_for_files(200);
  const rlim_t raised = file_limit().rlim_cur;
  CHECK(raised >= 200);
  net::make_room_for_files(100);
  CHECK(file_limit().rlim_cur == raised);
}

TEST_CASE("a limit on open files that cannot be raised so far is an error with what is needed") {
  const rlimit before = file_limit();
  REQUIRE(before.rlim_max != RLIM_INFINITY);
  const std::string text =
      text_of<Error>([&] { net::make_room_for_files(static_cast<std::size_t>(before.rlim_max)); });
  CHECK_THAT(text, Catch::StartsWith("it needs ") &&
                       Catch::Contains("and may have " + std::to_string(before.rlim_max) +
                                       " (ulimit -Hn): raise that limit"));
  CHECK(file_limit().rlim_cur == before.rlim_cur);
}

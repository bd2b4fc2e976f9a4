// SPDX-License-Identifier: Apache-2.0
#include "tools/check/check.h"

#include <catch2/catch.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/tools/ronde_command.h"

namespace {

using Catch::Contains;
using namespace ronde::test;
using ronde::tool::Link;

/// `program` on three ranks, with messages of 1, 33, 1057 and 33825 bytes.
CommandResult check_on_three(const std::string& program) {
  std::vector<std::string> line = {RONDE_COMMAND, "run", "-n", "3", "--"};
  if (RONDE_MPI_IS_LINKED) line = {RONDE_LAUNCHER, RONDE_LAUNCHER_COUNT, "3"};
  line.insert(line.end(), {program, "check", "--max", "33825"});
  return run_program(line);
}

/// Each of the six links has 15 messages of each size.
std::string right(const std::string& transport) {
  return "\n" + transport + ": 6 links, 360 messages, 0 wrong\n";
}

void check_matrices(const std::string& out, const std::string& transport) {
  for (const std::string title : {"latency in us over ", "GB/s over "}) {
    const std::regex matrix(title + transport +
                            ":\n +from +to 0 +to 1 +to 2\n"
                            " +0 +- +[0-9.]+ +[0-9.]+\n"
                            " +1 +[0-9.]+ +- +[0-9.]+\n"
                            " +2 +[0-9.]+ +[0-9.]+ +-\n");
    CHECK(std::regex_search(out, matrix));
  }
}

TEST_CASE("all bytes of all links are right over every transport of the job") {
  const CommandResult result = ended(0, check_on_three(RONDE_COMMAND));
  INFO(result.out);
  CHECK(result.err.empty());
  std::vector<std::string> transports = {"shm"};
  if (RONDE_MPI_IS_LINKED) transports.push_back("mpi");
  if (RONDE_UCX_IS_LINKED) transports.push_back("ucx");
  for (const std::string& transport : transports) {
    CHECK_THAT(result.out, Contains(right(transport)));
    check_matrices(result.out, transport);
  }
}

TEST_CASE("a flipped bit is named with its link, message and place") {
  const CommandResult result = ended(1, check_on_three(WRONG_BENCH));
  INFO(result.out << result.err);
  CHECK_THAT(result.out, Contains(right("shm")));
  CHECK_THAT(result.out, Contains("\nwrong: 6 links, 360 messages, 1 wrong\n"));
  const std::string fault =
      R"(rank 0 \(\S+\) -> rank 2 \(\S+\) over wrong: 1 of 60 messages; first message 16, )"
      R"(of 33825 B: element 0 is (\d+) and should be (\d+)\n)";
  std::smatch found;
  REQUIRE(std::regex_search(result.out, found, std::regex("WRONG DATA: " + fault)));
  CHECK((std::stoi(found[1]) ^ std::stoi(found[2])) == 1);
  CHECK(std::regex_search(result.err, std::regex("ronde check: wrong data: " + fault)));
}

TEST_CASE("links are compared with the median of those of their kind") {
  std::vector<Link> links;
  for (const double us : {1.0, 2.0, 2.0, 9.0}) {
    links.push_back({.latency_us = us, .bandwidth_gbs = 8});
  }
  for (const double us : {50.0, 60.0, 55.0}) {
    links.push_back({.is_within_host = false, .latency_us = us, .bandwidth_gbs = 1});
  }
  links.back().bandwidth_gbs = 0.25;
  ronde::tool::compare_with_medians(links);
  std::vector<bool> slow;
  for (const Link& link : links) slow.push_back(link.is_slow());
  CHECK(slow == std::vector{false, false, false, true, false, false, true});
  CHECK(links[0].latency_ratio == Approx(0.5));
  CHECK(links[3].latency_ratio == Approx(4.5));
  CHECK(links[6].bandwidth_ratio == Approx(0.25));
}

TEST_CASE("bytes of a message repeat at no distance, nor those of another") {
  const auto equal = [](std::uint64_t seed, std::size_t distance) {
    const auto one = ronde::tool::bytes_of(1), other = ronde::tool::bytes_of(seed);
    int count = 0;
    for (std::size_t i = 0; i < 8192; ++i) count += one(i) == other(i + distance);
    return count;
  };
  // Of random bytes one in 256 is equal: 32, and 100 has 12 times their standard deviation more.
  for (std::size_t distance = 1; distance <= 4096; ++distance) REQUIRE(equal(1, distance) < 100);
  CHECK(equal(1U << 20, 0) < 100);
}

TEST_CASE("what cannot be checked is told, with the exit code of usage errors") {
  CHECK_THAT(ended(2, run_command({"check"})).err, Contains("mpiexec -n 4 ronde check"));
  CHECK_THAT(ended(2, run_command({"check", "--max", "0"})).err, Contains("--max"));
}

}  // namespace

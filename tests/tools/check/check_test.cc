// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"
#include "tools/check/links.h"

namespace {

using Catch::Contains;
using nlohmann::json;
using namespace ronde::test;
using ronde::tool::Link;
using Words = std::vector<std::string>;

struct Checked {
  CommandResult result;
  json rows;
};

/// `program` with these words on three ranks.
Checked check_on_three(const Words& program, const Words& words = {}) {
  const TemporaryFolder folder;
  Words line = RONDE_MPI_IS_LINKED ? Words{RONDE_LAUNCHER, RONDE_LAUNCHER_COUNT, "3"}
                                   : Words{RONDE_COMMAND, "run", "-n", "3", "--"};
  line.insert(line.end(), program.begin(), program.end());
  line.insert(line.end(), {"check", "--json", folder / "links.json"});
  line.insert(line.end(), words.begin(), words.end());
  const CommandResult result = run_program(line);
  INFO(result.out << result.err);
  return {result, json::parse(read_text(folder / "links.json"))};
}

std::set<std::pair<int, int>> ends_of(const json& rows, const std::string& transport,
                                      const std::function<bool(const json&)>& chosen) {
  std::set<std::pair<int, int>> ends;
  for (const json& row : rows) {
    if (row.at("transport") == transport && chosen(row)) ends.emplace(row.at("from"), row.at("to"));
  }
  return ends;
}

bool is_wrong(const json& row) {
  return row.at("wrong") > 0;
}

const std::set<std::pair<int, int>> kAll = {{0, 1}, {0, 2}, {1, 0}, {1, 2}, {2, 0}, {2, 1}};
const std::set<std::pair<int, int>> kPlanted = {{0, 2}};

TEST_CASE("all bytes of all links are right over every transport of the job") {
  const auto [result, rows] = check_on_three({RONDE_COMMAND}, {"--max", "40000", "--slow", "1e9"});
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  std::set<std::string> transports = {"shm"};
  if (RONDE_MPI_IS_LINKED) transports.insert("mpi");
  if (RONDE_UCX_IS_LINKED) transports.insert("ucx");
  for (const std::string& transport : transports) {
    INFO(transport);
    CHECK(ends_of(rows, transport, [](const json&) { return true; }) == kAll);
    CHECK(ends_of(rows, transport, is_wrong).empty());
    CHECK_THAT(result.out, Contains("latency in us over " + transport) &&
                               Contains("GB/s over " + transport) &&
                               Contains(transport + ": 6 links, "));
  }
  for (const json& row : rows) {
    CHECK(row.at("messages") >= 6 * 5);
    CHECK(row.at("bytes") == 40000);
    CHECK((row.at("latency_us") > 0.0 && row.at("bandwidth_gbs") > 0.0));
    CHECK(row.at("first_wrong") == "");
  }
}

/// The fault is named with its link, and with its first wrong byte.
void check_planted(const Checked& checked, const std::string& fault, const std::string& first) {
  INFO(fault);
  CHECK(ends_of(checked.rows, fault, is_wrong) == kPlanted);
  std::smatch found;
  const std::regex text("WRONG DATA: rank 0 \\(\\S+\\) -> rank 2 \\(\\S+\\) over " + fault +
                        ": \\d+ of \\d+ messages; first message \\d+, of " + first +
                        " is 0x([0-9a-f]+) and should be 0x([0-9a-f]+)\n");
  REQUIRE(std::regex_search(checked.result.out, found, text));
  const int changed = std::stoi(found[1], nullptr, 16) ^ std::stoi(found[2], nullptr, 16);
  CHECK(changed != 0);
  if (fault == "flipped") CHECK(changed == 0x10);
}

TEST_CASE("a flipped byte, bytes in the wrong place and late messages are named with their link") {
  const Checked checked = check_on_three({PLANTED_CHECK}, {"--max", "33825"});
  const auto& [result, rows] = checked;
  INFO(result.out << result.err);
  CHECK(result.exit_code == 1);
  check_planted(checked, "flipped", "33825 B: byte 20001");
  check_planted(checked, "swapped", "33825 B: byte 0");
  check_planted(checked, "shifted", "33 B: byte 0");
  check_planted(checked, "repeated", "1057 B: byte 0");
  CHECK_THAT(result.err, Contains("ronde check: wrong data: rank 0 (") &&
                             Contains(" over flipped: ") && Contains("33825 B: byte 20001 is 0x"));
  for (const char* const right : {"shm", "late"}) CHECK(ends_of(rows, right, is_wrong).empty());

  const auto takes_long = [](const json& row) { return row.at("latency_us") >= 5000.0; };
  // The receipt that rank 0 sends back is late, too.
  CHECK(ends_of(rows, "late", takes_long) == std::set<std::pair<int, int>>{{0, 2}, {2, 0}});
  CHECK(ends_of(rows, "late", [](const json& row) { return row.at("slow"); }).contains({0, 2}));
  CHECK(std::regex_search(result.out, std::regex("warning: slow link: rank 0 \\(\\S+\\) -> rank 2 "
                                                 "\\(\\S+\\) over late: latency \\d{4}")));
}

TEST_CASE("links are compared with the median of those of their kind") {
  std::vector<Link> links;
  for (const double us : {1.0, 2.0, 2.0, 9.0}) {
    links.push_back({.latency_us = us, .largest_us = 100});
  }
  for (const double us : {50.0, 60.0, 55.0}) {
    links.push_back({.is_within_host = false, .latency_us = us, .largest_us = 10 * us});
  }
  links.back().largest_us = 4000;
  ronde::tool::compare_with_medians(links);
  std::vector<bool> slow;
  for (const Link& link : links) slow.push_back(link.is_slow(3.0));
  CHECK(slow == std::vector{false, false, false, true, false, false, true});
  CHECK(links[0].latency_ratio == Approx(0.5));
  CHECK(links[3].latency_ratio == Approx(4.5));
  CHECK(links[6].largest_ratio == Approx(4000.0 / 600.0));
}

TEST_CASE("bytes of a message repeat at no distance, nor those of another") {
  constexpr std::size_t kBytes = 8192;
  const auto equal = [](std::uint64_t seed, std::size_t distance) {
    int count = 0;
    for (std::size_t i = 0; i < kBytes; ++i) {
      count += ronde::tool::check_byte(1, i) == ronde::tool::check_byte(seed, i + distance);
    }
    return count;
  };
  // Of random bytes one in 256 is equal: 32, and 100 has 12 times their standard deviation more.
  for (std::size_t distance = 1; distance <= 4096; ++distance) REQUIRE(equal(1, distance) < 100);
  CHECK(equal(2, 0) < 100);
  CHECK(equal(1, 0) == kBytes);
}

TEST_CASE("what cannot be checked is told, with the exit code of usage errors") {
  CHECK_THAT(ended(2, run_command({"check"})).err, Contains("mpiexec -n 4 ronde check"));
  CHECK_THAT(ended(2, run_command({"check", "--slow", "0.5"})).err, Contains("--slow"));
  CHECK_THAT(ended(2, run_command({"check", "--max", "0"})).err, Contains("--max"));
  CHECK_THAT(ended(2, run_command({"check", "--json", "/nowhere/links.json"})).err,
             Contains("/nowhere/links.json"));
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <string>

#include "command.h"

namespace {

constexpr const char* kBegin = "<!-- begin: ronde info --markdown -->\n";
constexpr const char* kEnd = "<!-- end -->";

std::string read_page(const std::string& name) {
  std::ifstream page(std::string(RONDE_DOCS) + "/" + name);
  REQUIRE(page);
  return {std::istreambuf_iterator<char>(page), {}};
}

TEST_CASE("the table in docs tuning is what the command prints") {
  const std::string page = read_page("tuning.md");
  const std::size_t begin = page.find(kBegin);
  REQUIRE(begin != std::string::npos);
  const std::size_t table = begin + std::string(kBegin).size();
  const std::size_t end = page.find(kEnd, table);
  REQUIRE(end != std::string::npos);
  const auto printed = ronde::test::run_command({"info", "--markdown"});
  REQUIRE(printed.exit_code == 0);
  INFO("paste the output of `ronde info --markdown` between the two marks");
  CHECK(page.substr(table, end - table) == printed.out);
}

}  // namespace

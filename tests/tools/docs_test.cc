// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ronde/config.h"
#include "tests/support/processes/beside.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"

namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using namespace ronde::test;

const fs::path kRoot = RONDE_SOURCE_DIR;
const char* const kVariable = "RONDE_[A-Z0-9_]*[A-Z0-9]";

/// The files below `folders` that have one of these extensions.
std::vector<fs::path> files_in(const std::vector<std::string>& folders,
                               const std::set<std::string>& extensions) {
  std::vector<fs::path> found;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (extensions.contains(entry.path().extension())) found.push_back(entry.path());
    }
  }
  return found;
}

std::vector<fs::path> pages() {
  std::vector<fs::path> found = files_in({"docs", "tests"}, {".md"});
  std::erase_if(found,
                [](const fs::path& page) { return page.string().ends_with("quoted_tests.md"); });
  for (const char* name : {"README.md", "CONTRIBUTING.md"}) found.push_back(kRoot / name);
  for (const char* folder :
       {"api", "backends", "c_api", "core", "examples", "scripts", "tools", "torch_ext"}) {
    found.push_back(kRoot / folder / "README.md");
  }
  return found;
}

std::vector<std::smatch> matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  return {std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()};
}

/// Calls `visit(page, match)` for each match in a page, and says how many there are.
template <typename Visit>
std::size_t for_each_match(const char* pattern, Visit visit) {
  std::size_t count = 0;
  for (const fs::path& page : pages()) {
    const std::string text = read_text(page);
    for (const std::smatch& found : matches(text, pattern)) {
      visit(page, found);
      ++count;
    }
  }
  return count;
}

/// The page without its blocks of code.
std::string prose(const std::string& page) {
  std::string text;
  std::istringstream lines(page);
  bool in_code = false;
  for (std::string line; std::getline(lines, line);) {
    const bool is_fence = line.find("```") != std::string::npos;
    in_code = in_code != is_fence;
    if (!in_code && !is_fence) {
      text += line + "\n";
    }
  }
  REQUIRE_FALSE(in_code);
  return text;
}

TEST_CASE("the table in docs tuning is what the command prints") {
  const auto printed = ended(0, run_command({"info", "--markdown"}));
  INFO("paste the output of `ronde info --markdown` between the two marks");
  CHECK_THAT(read_text(kRoot / "docs/tuning.md"),
             Contains("<!-- begin: ronde info --markdown -->\n" + printed.out + "<!-- end -->"));
}

TEST_CASE("code that a page quotes from a file is in that file word for word") {
  const std::size_t quotes =
      for_each_match("<!-- from: (\\S+) -->\n```\\w*\n((?:(?!```).*\n)+)```\n",
                     [](const fs::path& page, const std::smatch& found) {
                       INFO(page << " quotes " << found[1]);
                       CHECK_THAT(read_text(kRoot / found[1].str()), Contains(found[2].str()));
                     });
  CHECK(quotes >= 8);
  CHECK(quotes == for_each_match("<!-- from: ", [](const auto&, const auto&) {}));
}

/// The string literals of the product, a line each; those that the compiler joins are joined.
std::string strings_of_product() {
  std::string all;
  for (const fs::path& file :
       files_in({"core", "backends", "torch_ext", "c_api", "api"}, {".cc", ".h"})) {
    const std::string source = read_text(file);
    std::ptrdiff_t end = 0;
    for (const std::smatch& found : matches(source, R"re("((?:\\.|[^"\\\n])*)")re")) {
      const std::string between = source.substr(end, found.position() - end);
      if (between.find_first_not_of(" \n") != std::string::npos) all += '\n';
      all += found[1].str();
      end = found.position() + found.length();
    }
    all += '\n';
  }
  return all;
}

TEST_CASE("errors that the page of failures quotes have each word beside one as in the product") {
  // What an error takes from the call, or has between two values.
  const std::set<std::string> values = {
      "rank",   "ranks",   "allreduce",    "allgather", "broadcast", "alltoall",
      "send",   "recv",    "peer",         "root",      "shape",     "splits",
      "cuda",   "buffers", "after",        "with",      "operation", "operations",
      "memory", "auto",    "hierarchical", "fabric",    "east",      "west",
      "threw",  "result",  "warning",      "bytes",     "instead"};
  const std::string product = strings_of_product();
  std::size_t checked = 0;
  const std::string page = read_text(kRoot / "docs/failures.md");
  for (const std::smatch& block : matches(page, "```\\w*\n([^`]*)```")) {
    const std::string quoted = block[1].str();
    std::istringstream stream(quoted);
    const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
    const auto says = [&](std::size_t first) {
      return first + 1 < words.size() &&
             product.find(words[first] + " " + words[first + 1]) != std::string::npos;
    };
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string word = std::regex_replace(words[i], std::regex("[.,:;()]+$|^\\("), "");
      if (!std::regex_match(word, std::regex("[a-z-]{4,}")) || values.contains(word)) continue;
      ++checked;
      INFO("no string of the product has \"" << words[i]
                                             << "\" beside the word before or after it in:\n"
                                             << quoted);
      CHECK((says(i) || (i > 0 && says(i - 1))));
    }
  }
  CHECK(checked > 250);
}

/// As GitHub makes an anchor of a heading: lower case, hyphens for spaces, no other punctuation.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-') {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (c == ' ') {
      anchor += '-';
    }
  }
  return anchor;
}

std::vector<std::string> anchors_in(const fs::path& page) {
  std::vector<std::string> found;
  std::istringstream lines(prose(read_text(page)));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t text = line.find_first_not_of('#');
    if (text == 0 || text == std::string::npos || line[text] != ' ') continue;
    const std::string anchor = anchor_of(line.substr(text + 1));
    const auto same = std::count(found.begin(), found.end(), anchor);
    found.push_back(same == 0 ? anchor : anchor + "-" + std::to_string(same));
  }
  return found;
}

TEST_CASE("links of the pages lead to files and to headings") {
  std::size_t headings = 0;
  for (const fs::path& page : pages()) {
    const std::string text = prose(read_text(page));
    for (const std::smatch& found : matches(text, "\\]\\((?!\\))([^)#:]*)(?:#([^)]*))?\\)")) {
      INFO(page << " links to " << found[0]);
      const fs::path target = found[1].length() == 0 ? page : page.parent_path() / found[1].str();
      CHECK(fs::exists(target));
      if (!found[2].matched) continue;
      ++headings;
      CHECK(std::ranges::count(anchors_in(target), found[2].str()) == 1);
    }
  }
  CHECK(headings > 50);
}

bool is_of_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

TEST_CASE("every name of ronde that the pages use is in the sources") {
  // Targets of CMake.
  std::set<std::string> words = {"ronde", "torch", "c", "core"};
  for (const fs::path& file :
       files_in({"api", "backends", "c_api", "core", "tools", "torch_ext"}, {".h", ".cc"})) {
    std::string text = read_text(file);
    std::ranges::replace_if(text, std::not_fn(is_of_word), ' ');
    std::istringstream stream(text);
    words.insert(std::istream_iterator<std::string>(stream), {});
  }
  const auto check = [&](const fs::path& page, const std::smatch& found) {
    INFO(page << " names " << found.str());
    const std::string names = found[1];
    for (const std::smatch& name : matches(names, "\\w+")) CHECK(words.contains(name.str()));
  };
  CHECK(for_each_match("\\bronde((::\\w+)+)", check) > 200);
}

/// A cell of a table without its marks and spaces.
std::string plain(std::string cell) {
  std::erase_if(cell, [](char c) { return c == '`' || c == ' '; });
  return cell;
}

TEST_CASE("the page for users of Horovod has every variable that has a name there") {
  const std::string page = read_text(kRoot / "docs/coming_from_horovod.md");
  for (const ronde::ConfigEntry& entry : ronde::config_table()) {
    if (entry.horovod_alias.empty()) continue;
    INFO(entry.horovod_alias);
    const std::string start = "| `" + entry.horovod_alias + "` |";
    const std::size_t at = page.find("\n" + start);
    REQUIRE(at != std::string::npos);
    std::istringstream row(page.substr(at + 1, page.find('\n', at + 1) - at));
    std::vector<std::string> cells;
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(plain(cell));
    REQUIRE(cells.size() >= 5);
    CHECK(cells[3] == entry.name);
    std::string value = entry.get(ronde::Config());
    if (value.empty()) value = "unset";
    CHECK((cells[4] == value || cells[4] == value + entry.unit));
  }
}

TEST_CASE("every variable that the pages name is one that is read") {
  const std::string known = run_command({"info", "--markdown"}).out;
  const std::string c_header = read_text(kRoot / "c_api/include/ronde/ronde_c_types.h");
  // Of the build, the tests, the scripts and `ronde run`.
  const std::regex others(
      "RONDE_(WITH|BUILD|MINUTES|LINK|FAR_LINK|HOSTS|TEST|HAVE|SANITIZE|WERROR|VENV|INSTALL|"
      "RESTART|RUN_BOARD).*");
  for_each_match(kVariable, [&](const fs::path& page, const std::smatch& found) {
    const std::string name = found.str();
    const bool is_of_c =
        std::regex_search(c_header, std::regex("\\b" + name + " =|define " + name + " "));
    if (is_of_c || std::regex_match(name, others)) return;
    INFO(page << " names " << name);
    CHECK_THAT(known, Contains("`" + name + "`"));
  });
}

TEST_CASE("the variables of the scripts are known, so that none of them warns") {
  std::vector<std::string> names;
  for (const fs::path& script : files_in({"scripts"}, {".sh"})) {
    // The comment that it begins with, up to its first command.
    const std::string text = read_text(script);
    const std::size_t end = text.find("\nset -");
    REQUIRE(end != std::string::npos);
    const std::string head = text.substr(0, end);
    for (const std::smatch& found : matches(head, kVariable)) names.push_back(found.str());
  }
  CHECK(std::ranges::count(names, "RONDE_PYTHON") > 0);
  const auto nothing_is_set = [](const std::string&) { return std::optional<std::string>(); };
  CHECK(ronde::load_config(nothing_is_set, names).warnings == std::vector<std::string>());
}

TEST_CASE("no page has a place that was left to be filled in") {
  for_each_match("@[A-Z][A-Z_]*@", [](const fs::path& page, const std::smatch& found) {
    FAIL_CHECK(page << " holds " << found.str());
  });
}

}  // namespace

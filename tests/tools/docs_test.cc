// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ronde/config.h"
#include "ronde_command.h"

namespace {

namespace fs = std::filesystem;
using ronde::test::run_command;

const fs::path kRoot = RONDE_SOURCE_DIR;
const std::string kTableBegin = "<!-- begin: ronde info --markdown -->\n";
const std::string kTableEnd = "<!-- end -->";

std::string read(const fs::path& path) {
  INFO(path);
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> pages() {
  std::vector<fs::path> found = {kRoot / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "docs")) {
    if (entry.path().extension() == ".md") {
      found.push_back(entry.path());
    }
  }
  return found;
}

std::vector<std::smatch> matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  return {std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()};
}

struct Excerpt {
  std::string file;
  std::string code;
};

/// The blocks of code that follow a line `<!-- from: FILE -->`.
std::vector<Excerpt> excerpts(const std::string& page) {
  const std::string mark = "<!-- from: ";
  const std::string mark_end = " -->\n```";
  std::vector<Excerpt> found;
  for (std::size_t at = page.find(mark); at != std::string::npos; at = page.find(mark, at)) {
    at += mark.size();
    const std::size_t name_end = page.find(mark_end, at);
    const std::size_t code = page.find('\n', name_end + mark_end.size()) + 1;
    const std::size_t code_end = page.find("\n```\n", code) + 1;
    REQUIRE(name_end < page.find('\n', at));
    REQUIRE(code_end > code);
    found.push_back({page.substr(at, name_end - at), page.substr(code, code_end - code)});
    at = code_end;
  }
  return found;
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
  const std::string page = read(kRoot / "docs/tuning.md");
  const std::size_t begin = page.find(kTableBegin);
  REQUIRE(begin != std::string::npos);
  const std::size_t table = begin + kTableBegin.size();
  const std::size_t end = page.find(kTableEnd, table);
  REQUIRE(end != std::string::npos);
  const auto printed = run_command({"info", "--markdown"});
  REQUIRE(printed.exit_code == 0);
  INFO("paste the output of `ronde info --markdown` between the two marks");
  CHECK(page.substr(table, end - table) == printed.out);
}

TEST_CASE("code that a page quotes from a file is in that file word for word") {
  std::size_t checked = 0;
  for (const fs::path& page : pages()) {
    for (const Excerpt& excerpt : excerpts(read(page))) {
      ++checked;
      INFO(page << " quotes " << excerpt.file << ":\n" << excerpt.code);
      CHECK(read(kRoot / excerpt.file).find(excerpt.code) != std::string::npos);
    }
  }
  CHECK(checked >= 8);
}

TEST_CASE("the page of failures quotes an error as the command says it") {
  const auto on_one_line = [](std::string text) {
    std::ranges::replace(text, '\n', ' ');
    return text;
  };
  const auto result = run_command({"info", "--json"}, {{"RONDE_FUSION_BYTES", "64Mo"}});
  const std::string error = nlohmann::json::parse(result.out).at("error");
  CHECK_THAT(on_one_line(read(kRoot / "docs/failures.md")),
             Catch::Contains("rank 1: " + on_one_line(error)));
}

/// The string literals of the product, a line each; those that the compiler joins are joined.
std::string strings_of_product() {
  std::string all;
  for (const char* folder : {"core", "backends", "torch_ext", "c_api", "api"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
      const std::string source = read(entry.path());
      std::ptrdiff_t end = 0;
      for (const std::smatch& found : matches(source, R"re("((?:\\.|[^"\\\n])*)")re")) {
        const std::string between = source.substr(end, found.position() - end);
        if (between.find_first_not_of(" \n") != std::string::npos) all += '\n';
        all += found[1].str();
        end = found.position() + found.length();
      }
      all += '\n';
    }
  }
  return all;
}

TEST_CASE("errors that the page of failures quotes have each word beside one as in the product") {
  // What an error takes from the call, or has between two values.
  const std::set<std::string> values = {
      "rank",  "ranks", "allreduce", "allgather",  "broadcast", "alltoall", "send",
      "recv",  "peer",  "root",      "shape",      "splits",    "cuda",     "buffers",
      "after", "with",  "operation", "operations", "memory",    "auto",     "hierarchical",
      "east",  "west",  "threw",     "result",     "warning",   "bytes",    "instead"};
  const std::string product = strings_of_product();
  std::size_t checked = 0;
  const std::string page = read(kRoot / "docs/failures.md");
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

TEST_CASE("links between the pages lead to files") {
  for (const fs::path& page : pages()) {
    const std::string text = prose(read(page));
    for (const std::smatch& found : matches(text, "\\]\\(([^)#:]+)(#[^)]*)?\\)")) {
      INFO(page << " links to " << found[1]);
      CHECK(fs::exists(page.parent_path() / found[1].str()));
    }
  }
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
  std::istringstream lines(prose(read(page)));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t text = line.find_first_not_of('#');
    if (text == 0 || text == std::string::npos || line[text] != ' ') continue;
    const std::string anchor = anchor_of(line.substr(text + 1));
    const auto same = std::count(found.begin(), found.end(), anchor);
    found.push_back(same == 0 ? anchor : anchor + "-" + std::to_string(same));
  }
  return found;
}

TEST_CASE("links to headings of the pages lead to one") {
  std::size_t checked = 0;
  for (const fs::path& page : pages()) {
    const std::string text = prose(read(page));
    for (const std::smatch& found : matches(text, "\\]\\(([^)#:]*)#([^)]*)\\)")) {
      const std::string file = found[1];
      INFO(page << " links to " << file << "#" << found[2]);
      const auto anchors = anchors_in(file.empty() ? page : page.parent_path() / file);
      CHECK(std::find(anchors.begin(), anchors.end(), found[2].str()) != anchors.end());
      ++checked;
    }
  }
  CHECK(checked > 50);
}

bool is_of_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Every word of the C++ below `folder`.
void add_words(const fs::path& folder, std::set<std::string>& words) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".h" && entry.path().extension() != ".cc") continue;
    const std::string text = read(entry.path());
    for (auto at = text.begin(); at != text.end();) {
      const auto begin = std::find_if(at, text.end(), is_of_word);
      at = std::find_if_not(begin, text.end(), is_of_word);
      words.emplace(begin, at);
    }
  }
}

TEST_CASE("every name of ronde that the pages use is in the sources") {
  // Targets of CMake.
  std::set<std::string> words = {"ronde", "torch", "c", "core"};
  for (const char* const folder : {"api", "backends", "c_api", "core", "tools", "torch_ext"}) {
    add_words(kRoot / folder, words);
  }
  std::size_t checked = 0;
  for (const fs::path& page : pages()) {
    const std::string text = read(page);
    for (const std::smatch& found : matches(text, "\\bronde((::\\w+)+)")) {
      INFO(page << " names " << found.str());
      const std::string names = found[1];
      for (const std::smatch& name : matches(names, "\\w+")) CHECK(words.count(name.str()) == 1);
      ++checked;
    }
  }
  CHECK(checked > 200);
}

/// A cell of a table without its marks and spaces.
std::string plain(std::string cell) {
  for (const char mark : {'`', ' '})
    cell.erase(std::remove(cell.begin(), cell.end(), mark), cell.end());
  return cell;
}

TEST_CASE("the page for users of Horovod has every variable that has a name there") {
  const std::string page = read(kRoot / "docs/coming_from_horovod.md");
  for (const ronde::ConfigEntry& entry : ronde::config_table()) {
    if (entry.horovod_twin.empty()) continue;
    INFO(entry.horovod_twin);
    const std::string start = "| `" + entry.horovod_twin + "` |";
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
  const std::string c_header = read(kRoot / "c_api/include/ronde/ronde_c.h");
  // Of the build, the tests and the scripts.
  const std::regex others("RONDE_(WITH|BUILD|MINUTES|TEST|HAVE|SANITIZE|WERROR|VENV|INSTALL).*");
  for (const fs::path& page : pages()) {
    const std::string text = read(page);
    for (const std::smatch& found : matches(text, "RONDE_[A-Z0-9_]*[A-Z0-9]")) {
      const std::string name = found.str();
      const bool is_of_c = std::regex_search(c_header, std::regex("\\b" + name + " ="));
      if (!is_of_c && !std::regex_match(name, others)) {
        INFO(page << " names " << name);
        CHECK(known.find("`" + name + "`") != std::string::npos);
      }
    }
  }
}

/// The comment that a script begins with, up to its first command.
std::string head(const fs::path& script) {
  const std::string text = read(script);
  const std::size_t end = text.find("\nset -");
  REQUIRE(end != std::string::npos);
  return text.substr(0, end);
}

TEST_CASE("the variables of the scripts are known, so that none of them warns") {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kRoot / "scripts")) {
    if (entry.path().extension() != ".sh") continue;
    const std::string text = head(entry.path());
    for (const std::smatch& found : matches(text, "RONDE_[A-Z0-9_]*[A-Z0-9]")) {
      names.push_back(found.str());
    }
  }
  CHECK(std::find(names.begin(), names.end(), "RONDE_PYTHON") != names.end());
  const auto nothing_is_set = [](const std::string&) { return std::optional<std::string>(); };
  CHECK(ronde::load_config(nothing_is_set, names).warnings == std::vector<std::string>());
}

TEST_CASE("no page has a place that was left to be filled in") {
  for (const fs::path& page : pages()) {
    const std::string text = read(page);
    for (const std::smatch& found : matches(text, "@[A-Z][A-Z_]*@")) {
      FAIL_CHECK(page << " holds " << found.str());
    }
  }
}

}  // namespace

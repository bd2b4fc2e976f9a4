// SPDX-License-Identifier: Apache-2.0
// ronde::main as processes that meet through files run it. The hidden case is a rank.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "ronde/ronde.h"
#include "ronde/run.h"
#include "tests/support/processes/file_ranks.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using namespace ronde::test;
using Lines = std::vector<std::string>;

constexpr int kStillThere = 9;
const std::string kDead = ". The group is dead: end this process, or start a new job";

void throw_nonsense() {
  throw std::invalid_argument("the loss is not a number");
}

void throw_own_reason() {
  throw std::runtime_error("rank " + std::to_string(ronde::rank()) + " is ill");
}

/// Until the group fails. They go on without a rank that has joined.
void pass_barriers() {
  for (;;) ronde::barrier();
}

/// It does nothing that would throw.
void await_failure() {
  while (!ronde::default_runtime().failure()) std::this_thread::yield();
}

void lose_the_reason() {
  try {
    pass_barriers();
  } catch (const ronde::GroupError&) {
    throw std::runtime_error("no step");
  }
}

/// It comes to the program's end while the others' operations still run.
void add_hook() {
  ronde::add_shutdown_hook([] { ronde::barrier(); });
}

/// What rank 1 of three does, and the others.
struct Manner {
  std::function<void()> of_rank_1;
  std::function<void()> of_others;
};

const std::map<std::string, Manner> kManners = {
    {"returns", {[] {}, [] {}}},
    {"shuts down itself", {[] { ronde::shutdown(); }, [] { ronde::shutdown(); }}},
    {"has a hook", {add_hook, add_hook}},
    {"throws while others wait", {throw_nonsense, pass_barriers}},
    {"throws while others end", {throw_nonsense, [] {}}},
    {"throws before others end", {throw_nonsense, await_failure}},
    {"throws a number", {[] { throw 7; }, pass_barriers}},
    {"throws after a join",
     {[] {
        static_cast<void>(ronde::join_async());
        throw_nonsense();
      },
      pass_barriers}},
    {"throws everywhere", {throw_nonsense, throw_nonsense}},
    {"throws, and others do as well", {throw_nonsense, lose_the_reason}},
    {"throws what each has", {throw_own_reason, throw_own_reason}},
    {"dies while others end", {[] { std::_Exit(3); }, [] {}}},
};

TEST_CASE("helper: a rank of ronde::main", "[.]") {
  const std::string manner = started_with("MAIN_MANNER");
  const ronde::InitOptions options = {.key_value = start_by_files()};
  if (manner == "returns a status") {
    std::exit(ronde::main([] { return 40 + ronde::rank(); }, options));
  }
  const auto program = [&] {
    const Manner& both = kManners.at(manner);
    (ronde::rank() == 1 ? both.of_rank_1 : both.of_others)();
  };
  const int status = ronde::main(program, options);
  std::exit(ronde::is_initialized() ? kStillThere : status);
}

struct End {
  int exit_code = -1;
  Lines said;  ///< by ronde::main, without the name of the program

  bool operator==(const End&) const = default;
};

std::ostream& operator<<(std::ostream& out, const End& end) {
  out << "exit code " << end.exit_code;
  for (const std::string& line : end.said) out << "\n  " << line;
  return out;
}

std::vector<End> run_main(const std::string& manner,
                          std::map<std::string, std::string> variables = {}) {
  variables["MAIN_MANNER"] = manner;
  std::vector<End> ends;
  for (const CommandResult& result :
       run_file_ranks(3, "helper: a rank of ronde::main", variables)) {
    UNSCOPED_INFO(result.out << result.err);
    End& end = ends.emplace_back(End{.exit_code = result.exit_code, .said = {}});
    std::istringstream lines(result.err);
    const std::string name = "exe: ";  // the processes are started as /proc/self/exe
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name)) end.said.push_back(line.substr(name.size()));
    }
  }
  return ends;
}

/// Every rank fails: rank 1 says its own reason, and the others that it aborted for this.
void check_reason(const std::string& manner, const std::string& reason) {
  INFO(manner);
  const End other = {1, {"rank 1 aborted: " + reason + kDead}};
  CHECK(run_main(manner) == std::vector<End>{other, {1, {reason}}, other});
}

}  // namespace

TEST_CASE("ronde::main gives what the program returns, or 0") {
  CHECK(run_main("returns") == std::vector<End>{{0, {}}, {0, {}}, {0, {}}});
  CHECK(run_main("shuts down itself") == std::vector<End>{{0, {}}, {0, {}}, {0, {}}});
  CHECK(run_main("has a hook") == std::vector<End>{{0, {}}, {0, {}}, {0, {}}});
  CHECK(run_main("returns a status") == std::vector<End>{{40, {}}, {41, {}}, {42, {}}});
}

TEST_CASE("ronde::main writes the profile and the timeline of all ranks") {
  const TemporaryFolder folder;
  const std::string profile = folder / "run.json", timeline = folder / "all.json";
  const std::vector<End> well = {{0, {}}, {0, {}}, {0, {}}};
  CHECK(run_main("returns", {{"RONDE_PROFILE", profile}, {"RONDE_TIMELINE", timeline}}) == well);
  CHECK_THAT(read_text(profile), Catch::Contains("\"complete\": true"));
  CHECK_THAT(read_text(timeline), Catch::Contains("\"world_size\":3"));
}

TEST_CASE("an exception in ronde::main ends every rank with its reason") {
  check_reason("throws while others wait", "the loss is not a number");
  check_reason("throws while others end", "the loss is not a number");
  check_reason("throws before others end", "the loss is not a number");
  check_reason("throws a number", "an exception that does not derive from std::exception");
  check_reason("throws after a join", "the loss is not a number");
}

TEST_CASE("an exception on every rank of ronde::main is said once by each") {
  const End end = {1, {"the loss is not a number"}};
  CHECK(run_main("throws everywhere") == std::vector<End>{end, end, end});
}

TEST_CASE("a survivor in ronde::main says the first cause beside its own error") {
  const End survivor = {1, {"no step", "rank 1 aborted: the loss is not a number" + kDead}};
  CHECK(run_main("throws, and others do as well") ==
        std::vector<End>{survivor, {1, {"the loss is not a number"}}, survivor});
}

TEST_CASE("ranks of ronde::main that fail at once agree on one cause") {
  const std::vector<End> ends = run_main("throws what each has");
  Lines causes;
  for (int rank = 0; rank < 3; ++rank) {
    const End& end = ends.at(static_cast<std::size_t>(rank));
    CHECK(end.exit_code == 1);
    REQUIRE_FALSE(end.said.empty());
    CHECK(end.said.front() == "rank " + std::to_string(rank) + " is ill");
    causes.insert(causes.end(), end.said.begin() + 1, end.said.end());
  }
  REQUIRE(causes.size() == 2);  // the rank whose reason it is does not repeat it
  CHECK(causes[0] == causes[1]);
  CHECK_THAT(causes[0], Catch::Contains(" aborted: rank ") && Catch::EndsWith(kDead));
}

TEST_CASE("a shutdown of ronde::main that fails is an error of the survivors") {
  const std::vector<End> ends = run_main("dies while others end");
  CHECK(ends.at(1) == End{3, {}});
  for (const std::size_t survivor : {0, 2}) {
    CHECK(ends.at(survivor).exit_code == 1);
    REQUIRE(ends.at(survivor).said.size() == 1);
    CHECK_THAT(ends.at(survivor).said[0], Catch::StartsWith("rank 1 was lost: "));
  }
}

TEST_CASE("an init of ronde::main that fails runs no program") {
  for (const End& end : run_main("returns a status", {{"RONDE_FUSION_BYTES", "64Mo"}})) {
    CHECK(end.exit_code == 1);
    REQUIRE(end.said.size() == 1);
    CHECK_THAT(end.said[0], Catch::StartsWith("ranks 0-2: RONDE_FUSION_BYTES: \"64Mo\" is not"));
  }
}

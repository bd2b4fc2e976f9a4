// SPDX-License-Identifier: Apache-2.0
// `ronde sim`: its parts on small programs, and the command.
#include <catch2/catch.hpp>
#include <map>
#include <regex>
#include <sstream>

#include "ronde/error.h"
#include "tests/tools/prof_fixtures.h"
#include "tests/tools/ronde_command.h"
#include "tools/sim/scenario.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using namespace ronde::tool;
using Catch::Contains;
using Words = std::vector<std::string>;

/// Steps of these lengths in milliseconds, of which a rank waits the last tenth.
void write_steps(const TemporaryFolder& folder, const std::vector<std::int64_t>& lengths) {
  std::vector<Event> all = {event_at(0, EventKind::StepEnded, 1)};
  std::int64_t begin = 0;
  std::uint64_t number = 0;
  for (const std::int64_t ms : lengths) {
    for (const char* name : {"b", "a"}) {
      all.push_back(event_at(begin + ms / 2, EventKind::Submitted, ++number, name));
      all.back().bytes = 4'000'000;
    }
    all.push_back(event_at(begin + ms * 9 / 10, EventKind::WaitBegun, number));
    begin += ms;
    all.push_back(event_at(begin, EventKind::WaitEnded, number));
    all.push_back(event_at(begin, EventKind::Completed, number));
    all.push_back(event_at(begin, EventKind::StepEnded, number / 2 + 1));
    all.back().bytes = 16;
  }
  Timeline timeline(folder / "rank0.json", {.size = 2, .host = "n1"},
                    [] { return std::vector<ClockOffset>(); });
  timeline.take(all, 0);
  timeline.finish({});
}

Scenario hosts_of_one(int ranks) {
  Scenario scenario;
  for (int rank = 0; rank < ranks; ++rank) scenario.group.host_of.push_back(rank);
  scenario.group.config.log_level = "off";
  scenario.steps = 4;
  scenario.keeps_messages = true;
  return scenario;
}

TEST_CASE("A program is what a rank's timeline holds: submissions, the wait and the rest") {
  const TemporaryFolder folder;
  TracedRank().write(folder);
  const Program program = read_program(folder.path());
  REQUIRE(program.operations.size() == 1);
  CHECK(program.operations[0].name == "conv.weight");
  CHECK(program.operations[0].bytes == 40'000'000);
  CHECK(program.samples == 16);
  REQUIRE(program.actions.size() == 2);
  CHECK(program.actions[0].act == Program::Act::Submit);
  CHECK(program.actions[0].after_us == Approx(20e3));
  CHECK(program.actions[1].act == Program::Act::WaitForAll);
  CHECK(program.actions[1].after_us == Approx(1e3));
  CHECK(program.rest_us == Approx(69e3));  // 10 of 100 ms were waited
  CHECK(program.factors == std::vector<double>{1});
  CHECK_FALSE(program.wire_dtype.has_value());
}

TEST_CASE("A program is the median step, and knows how those after the first quarter differ") {
  const TemporaryFolder folder;
  write_steps(folder, {900, 300, 90, 120, 110});
  const Program program = read_program(folder / "rank0.json");
  REQUIRE(program.actions.size() == 3);
  CHECK(program.compute_us() == Approx(108e3));  // nine tenths of 120 ms
  REQUIRE(program.factors.size() == 4);
  CHECK(program.factors.front() == Approx(90.0 / 120));
  CHECK(program.factors.back() == Approx(300.0 / 120));
}

TEST_CASE("A wait before other submissions is one for its operation") {
  const TemporaryFolder folder;
  std::vector<Event> all = events_of_a_step();
  const auto end = std::ranges::find(all, EventKind::SpanEnded, &Event::kind);
  REQUIRE(end != all.end());
  all.insert(all.end() - 1, event_at(70, EventKind::Submitted, 8, "fc.weight"))->bytes = 400;
  Timeline timeline(folder / "rank1.json", {.rank = 1, .size = 2, .host = "n1"},
                    [] { return std::vector<ClockOffset>(); });
  timeline.take(all, 0);
  const Program program = read_program(folder / "rank1.json");
  REQUIRE(program.actions.size() == 4);
  CHECK(program.actions[1].act == Program::Act::Wait);
  CHECK(program.actions[1].operation == 0);
  CHECK(program.actions[2].after_us == Approx(39e3));  // from the wait's end, at 31 ms, to 70 ms
  CHECK(program.actions[3].after_us == Approx(0));
  CHECK(program.compute_us() == Approx(90e3));
}

TEST_CASE("The gradients of a model are spread over backward, the last parameter's first") {
  const Program program = model_program("resnet50", 300);
  REQUIRE(program.operations.size() == 161);
  CHECK(program.operations.front().bytes == 4000);  // the classifier's bias
  CHECK(program.actions.front().after_us > 100e3);
  CHECK(program.compute_us() == Approx(300e3));
}

TEST_CASE("A simulated step has its computing, and what is exposed") {
  const Program program = model_program("edsr", 50);
  const Outcome alone = simulate(hosts_of_one(1), program);
  CHECK(alone.step_ms == Approx(50).epsilon(0.01));
  CHECK(alone.link_bytes == 0);
  Scenario scenario = hosts_of_one(4);
  scenario.group.network.gap_per_byte = 80e-9;  // 100 Mbit/s
  const Outcome slow = simulate(scenario, program);
  // Each host sends and receives at least 2 (4 - 1) / 4 of the bytes.
  const double bytes = 1.5 * 5'479'436;
  CHECK(slow.link_bytes > bytes);
  CHECK(slow.link_bytes < 1.1 * bytes);
  CHECK(slow.step_ms > bytes * 80e-6);
  CHECK(slow.step_ms - slow.exposed_ms == Approx(50).epsilon(0.02));
  CHECK(simulate(scenario, program).step_ms == slow.step_ms);
  scenario.slow[2] = 3;
  CHECK(simulate(scenario, program).step_ms > 150);
}

TEST_CASE("Ranks that compute unevenly wait for the slowest, alike for the same seed") {
  Program program = model_program("edsr", 50);
  program.factors = {0.9, 1, 1, 1.3};
  Scenario scenario = hosts_of_one(4);
  const Outcome first = simulate(scenario, program);
  CHECK(first.step_ms > 50);
  CHECK(simulate(scenario, program).step_ms == first.step_ms);
  scenario.seed = 7;
  CHECK(simulate(scenario, program).exposed_ms != first.exposed_ms);
}

TEST_CASE("The death of a rank is told to the programs of the others") {
  Scenario scenario = hosts_of_one(4);
  scenario.kill = {2, 1};
  const Outcome outcome = simulate(scenario, model_program("edsr", 50));
  CHECK_THAT(outcome.told, Contains("rank 2"));
  CHECK(outcome.first_told_ms >= 0);
  CHECK(outcome.last_told_ms >= outcome.first_told_ms);
}

/// The labels that each line of a rank's block has or needs, and its messages.
struct GoalRank {
  std::map<std::string, std::string> sends, receives;  ///< "peer tag" to bytes
  std::uint64_t computed_ns = 0;
};

std::vector<GoalRank> parse_goal(const std::string& text) {
  static const std::regex head("rank (\\d+) \\{"), calc("l(\\d+): calc (\\d+)( cpu 1)?"),
      requires_("l(\\d+) requires l(\\d+)"),
      message("l(\\d+): (send|recv) (\\d+)b (to|from) (\\d+ tag \\d+)");
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::vector<GoalRank> ranks;
  std::uint64_t labels = 0;
  for (std::smatch match; std::getline(lines, line);) {
    if (line.empty() || line == "}") continue;
    if (std::regex_match(line, match, head)) {
      REQUIRE(match[1] == std::to_string(ranks.size()));
      ranks.emplace_back();
      labels = 0;
    } else if (std::regex_match(line, match, calc)) {
      REQUIRE(match[1] == std::to_string(++labels));
      ranks.back().computed_ns += std::stoull(match[2]);
    } else if (std::regex_match(line, match, message)) {
      REQUIRE(match[1] == std::to_string(++labels));
      auto& messages = match[2] == "send" ? ranks.back().sends : ranks.back().receives;
      CHECK(messages.try_emplace(match[5], match[3]).second);
    } else {
      INFO(line);
      REQUIRE(std::regex_match(line, match, requires_));
      REQUIRE(match[1] == std::to_string(labels));
      CHECK(std::stoull(match[2]) < labels);
    }
  }
  return ranks;
}

TEST_CASE("A step in GOAL has each message at both ends, and all computing") {
  const Scenario scenario = hosts_of_one(3);
  const Outcome outcome = simulate(scenario, model_program("edsr", 50));
  std::ostringstream text;
  write_goal(outcome, scenario.group.network, text);
  CHECK_THAT(text.str(), Catch::StartsWith("num_ranks 3\n"));
  const std::vector<GoalRank> ranks = parse_goal(text.str());
  REQUIRE(ranks.size() == 3);
  std::size_t sends = 0, receives = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    CHECK(ranks[rank].computed_ns >= 50'000'000);
    sends += ranks[rank].sends.size();
    receives += ranks[rank].receives.size();
    for (const auto& [peer_and_tag, bytes] : ranks[rank].sends) {
      const std::size_t peer = std::stoul(peer_and_tag);
      const std::string tag = peer_and_tag.substr(peer_and_tag.find(' '));
      const auto& at_peer = ranks.at(peer).receives;
      REQUIRE(at_peer.contains(std::to_string(rank) + tag));
      CHECK(at_peer.at(std::to_string(rank) + tag) == bytes);
    }
  }
  CHECK(sends > 0);
  CHECK(sends == outcome.messages.size());
  CHECK(receives == sends);
}

TEST_CASE("ronde sim writes a row for each combination, alike each time") {
  const TemporaryFolder folder;
  write_steps(folder, {100, 300, 90, 120, 110});
  const std::string json = folder / "rows.json";
  const Words words = {"sim",
                       "--timeline",
                       folder.path(),
                       "--ranks",
                       "2,5",
                       "--ranks-per-host",
                       "2",
                       "--bandwidth",
                       "1,10",
                       "--latency",
                       "50",
                       "--set",
                       "RONDE_FUSION_BYTES=1MiB,64MiB",
                       "--set",
                       "RONDE_ALGORITHMS=allreduce:ring,allreduce/8:pairwise",
                       "--mtbf",
                       "1000",
                       "--restart-s",
                       "60",
                       "--checkpoint-steps",
                       "1000",
                       "--json",
                       json};
  const auto result = ended(0, run_command(words));
  CHECK_THAT(result.out, Contains("2 operations of 8.0 MB") && Contains("RONDE_FUSION_BYTES"));
  // What neither a file nor an option gives.
  CHECK_THAT(result.out, Contains("defaults, in seconds") &&
                             Contains("network.overhead 1e-06, network.overhead_per_byte 0.0, "
                                      "network.gap 1e-06, host.bytes_reduced 1e-10: mpiexec") &&
                             Contains("host.round 1e-06, host.message 1e-06: no benchmark"));
  const std::string text = read_text(json);
  const Json rows = Json::parse(text);
  REQUIRE(rows.size() == 8);
  CHECK(rows[0].at("ranks") == 2);
  CHECK(rows[7].at("hosts") == 3);
  CHECK(rows[5].at("bandwidth_gbit") == "1");
  CHECK(rows[5].at("RONDE_FUSION_BYTES") == "64MiB");
  for (const Json& row : rows) {
    CHECK(row.at("step_ms") >= 108.0);
    CHECK(row.at("efficiency_percent") <= 100.0);
    CHECK(row.at("samples_per_s") ==
          Approx(16e3 * row.at("ranks").get<double>() / row.at("step_ms").get<double>()));
    CHECK((row.at("link_bytes") > 4e6) == (row.at("hosts") > 1));
    CHECK(row.at("goodput_percent") > 90.0);
    CHECK(row.at("goodput_percent") < 100.0);
    CHECK(row.at("default_costs").size() == 10);
  }
  CHECK(rows[4].at("step_ms") > rows[6].at("step_ms"));  // 1 Gbit/s, 10 Gbit/s
  ended(0, run_command(words));
  CHECK(read_text(json) == text);
}

TEST_CASE("ronde sim says what is wrong with its arguments and files") {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name, const std::string& text) {
    write_bytes(folder / name, text);
    return (folder / name).string();
  };
  TracedRank().write(folder);
  const std::string whole = read_text(folder / "rank0.json");
  std::string newer = whole, damaged = whole;
  newer.replace(newer.find("\"timeline\":1"), 12, "\"timeline\":9");
  damaged.replace(damaged.find("{\"ph\":\"b\""), 5, "{\"ph}");
  const std::string stepless =
      std::regex_replace(whole, std::regex("\"cat\":\"step\""), "\"cat\":\"\"");
  const Words link = {"--bandwidth", "10", "--latency", "20"};
  const Words edsr = {"--model", "edsr", "--compute-ms", "10"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words good = with(edsr, link);
  const std::vector<std::pair<Words, std::string>> wrong = {
      {with({"--timeline", "/none"}, link), "/none"},
      {with({"--timeline", file("cut", whole.substr(0, whole.size() / 2))}, link), "is cut after"},
      {with({"--timeline", file("newer", newer)}, link), "9"},
      {with({"--timeline", file("damaged", damaged)}, link), "is damaged in line"},
      {with({"--timeline", file("stepless", stepless)}, link), "has no step"},
      {with({"--timeline", file("empty", "{}")}, link), "traceEvents"},
      {link, "either --timeline FILE or --model NAME"},
      {with({"--model", "edsr"}, link), "--model needs --compute-ms"},
      {with({"--model", "vgg", "--compute-ms", "10"}, link), "there is no list \"vgg\""},
      {edsr, "give --costs FILE"},
      {with(edsr, {"--costs", "/none"}), "no fitted costs"},
      {with(edsr, {"--costs", file("host", R"([{"costs": {"fitted": {"host.wake": 5e-6}}}])")}),
       "nothing was measured between hosts"},
      {with(edsr, {"--costs", file("rows", R"([{"benchmark": "allreduce"}])")}), "no fitted costs"},
      {with(edsr, {"--costs", file("bad", R"([{"benchmark": "", "costs": {"fitted":
                                           {"host.wake": -1}}}])")}),
       "host.wake is -1"},
      {with(edsr, {"--costs", file("typo", R"([{"costs": {"fitted": {"host.wakes": 1e-6}}}])")}),
       "host.wakes is no cost"},
      {with(good, {"--ranks", "100000000"}), "20000 GB of memory, and this host has"},
      {with(good, {"--ranks", "0"}), "--ranks"},
      {with(good, {"--ranks-per-host", "0"}), "--ranks-per-host"},
      {with(good, {"--set", "RONDE_FUSION=1"}), "give VAR=VALUE"},
      {with(good, {"--set", "RONDE_FUSION_BYTES=1MiB,x"}), "\"x\""},
      {with(good, {"--set", "RONDE_LOG_LEVEL=info"}), "has no effect here"},
      {with(good, {"--slow", "4:2"}), "there is no rank 4"},
      {with(good, {"--slow", "1"}), "give two numbers"},
      {with(good, {"--kill", "1@20"}), "steps are 0 to 19"},
      {with(good, {"--mtbf", "10"}), "--mtbf requires"},
      {with(good, {"--goal", folder / "goal", "--bandwidth", "1"}), "--goal is of one row"},
      {with(good, {"--json", "/none/rows.json"}), "cannot be written"}};
  for (const auto& [arguments, problem] : wrong) {
    const auto result = ended(2, run_command(with({"sim", "--ranks", "4"}, arguments)));
    CHECK_THAT(result.err, Contains(problem));
  }
}

}  // namespace

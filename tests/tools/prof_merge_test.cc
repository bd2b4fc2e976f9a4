// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <sstream>
#include <string>

#include "tests/tools/prof_fixtures.h"
#include "tests/tools/ronde_command.h"
#include "tools/prof/merge/merge.h"
#include "tools/prof/read/trace.h"

namespace {

using Catch::Contains;
using ronde::prof::TraceHead;
using namespace ronde::test;

/// Writes a timeline of two ranks. Rank 1's clock is 2 s behind at its time 1 s, and loses 1 ms
/// more in the second after that.
void write_drifting(const TemporaryFolder& folder) {
  TracedRank().write(folder);
  TracedRank{.rank = 1,
             .clock = {{.at_ns = 1000 * kMs, .ahead_ns = 2000 * kMs},
                       {.at_ns = 2000 * kMs, .ahead_ns = 2001 * kMs}},
             .lost = 3}
      .write(folder);
}

Json parse(const std::filesystem::path& path) {
  return Json::parse(read_text(path));
}

std::size_t events_in(const std::filesystem::path& path) {
  return parse(path).at("traceEvents").size();
}

std::string merged(const TemporaryFolder& folder) {
  std::ostringstream out;
  ronde::prof::merge_timeline(folder.path(), folder / "merged.json", {}, out);
  return out.str();
}

std::vector<Json> events_of(const Json& trace, int pid, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("pid") == pid && event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

Json named(const std::vector<Json>& events, const std::string& name) {
  const auto found =
      std::ranges::find_if(events, [&](const Json& event) { return event.at("name") == name; });
  REQUIRE(found != events.end());
  return *found;
}

TEST_CASE("merged ranks are on rank 0's clock, with its offset and its drift") {
  const TemporaryFolder folder;
  write_drifting(folder);
  const std::size_t events = events_in(folder / "rank0.json") + events_in(folder / "rank1.json");
  const auto result = ended(0, run_command({"prof", "merge", folder.path()}));
  CHECK_THAT(result.out,
             Contains(std::to_string(events) + " events of 2 ranks on rank 0's clock") &&
                 Contains("rank 1's file lacks 3 events"));
  const Json merged = parse(folder / "merged.json");
  CHECK(merged.at("distributedInfo") == Json{{"backend", "ronde"}, {"rank", 0}, {"world_size", 2}});
  const Json here = named(events_of(merged, 0, "X"), "backward");
  CHECK(here.at("ts").get<double>() == Approx(1.01e6).epsilon(1e-12));
  CHECK(here.at("dur").get<double>() == Approx(50e3));
  const Json there = named(events_of(merged, 1, "X"), "backward");
  CHECK(there.at("ts").get<double>() == Approx(3.01e6 + 10).epsilon(1e-12));
  CHECK(there.at("dur").get<double>() == Approx(50e3 + 50).epsilon(1e-12));
  // Flow events of one bucket meet by their id, operations of two ranks must not.
  CHECK(events_of(merged, 0, "s").front().at("id") == events_of(merged, 1, "f").front().at("id"));
  CHECK(events_of(merged, 0, "b").front().at("id") == "r0.7");
  CHECK(events_of(merged, 1, "e").front().at("id") == "r1.7");
  // What is merged can be read like what was written.
  CHECK(ronde::prof::read_trace(folder / "merged.json", [](const Json&) {}).events == events + 4);
}

TEST_CASE("a timeline cut at any byte keeps the events whose lines are complete") {
  const TemporaryFolder folder;
  write_drifting(folder);
  const std::string whole = read_text(folder / "rank1.json");
  std::vector<std::size_t> ends;  // of the events, without a comma behind
  const std::size_t list = whole.find("\"traceEvents\":[\n"), behind = whole.find("\n],\n", list);
  for (std::size_t at = whole.find('\n', list); at < behind;) {
    at = whole.find('\n', at + 1);
    ends.push_back(at == behind ? at : at - 1);
  }
  REQUIRE(ends.size() == events_in(folder / "rank1.json"));
  const std::size_t of_rank_0 = events_in(folder / "rank0.json");
  for (std::size_t size = whole.size() % 3; size <= whole.size(); size += 3) {
    INFO(size << " of " << whole.size() << " bytes");
    write_bytes(folder / "rank1.json", whole.substr(0, size));
    const auto lines =
        static_cast<std::size_t>(std::ranges::upper_bound(ends, size) - ends.begin());
    std::size_t visited = 0;
    const TraceHead head =
        ronde::prof::read_trace(folder / "rank1.json", [&](const Json&) { ++visited; });
    REQUIRE(head.rank == 1);
    REQUIRE(head.events == lines);
    REQUIRE(visited == lines);
    REQUIRE(head.damaged_lines.empty());
    REQUIRE(head.cut == (size < whole.size() - 1));
    REQUIRE(head.figures.has_value() == !head.cut);
    if (size % 97 != 0) continue;
    REQUIRE(merged(folder).starts_with("rank 1's file is cut after") == head.cut);
    REQUIRE(events_in(folder / "merged.json") == of_rank_0 + 4 + lines);
  }
}

TEST_CASE("a damaged line of a timeline is left out, and told") {
  const TemporaryFolder folder;
  TracedRank().write(folder);
  std::string text = read_text(folder / "rank0.json");
  const std::size_t at = text.find("\"load batch\"");
  text.replace(at, 1, "}");
  write_bytes(folder / "rank0.json", text);
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n');
  CHECK_THAT(merged(folder), Contains("rank 0's file has 1 damaged line") &&
                                 Contains("the first is line " + std::to_string(line)) &&
                                 Contains("no file of rank 1"));
}

TEST_CASE("timelines of two runs, of a newer layout or without an event are refused") {
  const TemporaryFolder folder;
  TracedRank().write(folder);
  TracedRank{.rank = 1, .ranks = 4}.write(folder);
  CHECK_THROWS_WITH(merged(folder), Contains("rank0.json is of 2 ranks and") && Contains("of 4"));
  std::string newer = read_text(folder / "rank0.json");
  newer.replace(newer.find("\"timeline\":1"), 12, "\"timeline\":2");
  write_bytes(folder / "rank1.json", newer);
  CHECK_THROWS_WITH(merged(folder), Contains("rank1.json has layout 2"));
  for (const char* name : {"rank0.json", "rank1.json"}) write_bytes(folder / name, "{");
  CHECK_THROWS_WITH(merged(folder), Contains("holds no complete event"));
  CHECK_FALSE(std::filesystem::exists(folder / "merged.json"));
  TracedRank().write(folder);
  const auto result =
      ended(2, run_command({"prof", "merge", folder.path(), "-o", "/nowhere/merged.json"}));
  CHECK_THAT(result.err, Contains("/nowhere/merged.json cannot be written: No such file"));
}

TEST_CASE("a timeline is never overwritten by what is made of it") {
  const TemporaryFolder folder;
  write_drifting(folder);
  const std::string before = read_text(folder / "rank1.json");
  const std::string path = folder.path();
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--hta", "-o", path + "/."}, {"-o", path + "/rank1.json"}}) {
    std::vector<std::string> words = {"prof", "merge", path};
    words.insert(words.end(), options.begin(), options.end());
    const auto result = ended(2, run_command(words));
    CHECK_THAT(result.err, Contains("of the timeline itself: write to another one"));
    CHECK(read_text(folder / "rank1.json") == before);
  }
  write_bytes(folder / "p.rank0.json", "{}");  // a profile is no part of it
  CHECK(ronde::prof::read_heads(folder.path()).size() == 2);
}

TEST_CASE("an arrow between ranks begins where its message began first") {
  const TemporaryFolder folder;
  TracedRank().write(folder);
  TracedRank{.rank = 1, .clock = {{.ahead_ns = -5000}}}.write(folder);
  REQUIRE(run_command({"prof", "merge", folder.path()}).exit_code == 0);
  const Json merged = parse(folder / "merged.json");
  CHECK(events_of(merged, 0, "s").empty());
  CHECK(events_of(merged, 0, "f").front().at("bp") == "e");
  CHECK(!events_of(merged, 1, "s").front().contains("bp"));
}

TEST_CASE("LibTorch's own trace comes onto the same clock, whichever time it counts from") {
  const TemporaryFolder folder;
  write_drifting(folder);
  const auto heads = ronde::prof::read_heads(folder.path());
  const Json op = {{"ph", "X"},   {"cat", "cpu_op"}, {"name", "aten::mm"},
                   {"pid", 4711}, {"tid", 4711},     {"dur", 5}};
  Json absolute = op;
  absolute["ts"] = heads[0].clock.wall_minus_monotonic_us + 1.02e6;
  Json flow = absolute;
  flow["ph"] = "s";
  flow["id"] = 3;
  write_bytes(folder / "old.trace", Json{{"traceEvents", {absolute, flow}}}.dump());
  Json relative = op;
  relative["pid"] = 0;  // a device
  relative["ts"] = heads[1].clock.wall_minus_monotonic_us + 1.02e6 - 4e6;
  write_bytes(folder / "new.trace",
              Json{{"baseTimeNanoseconds", 4'000'000'000}, {"traceEvents", {relative}}}.dump());
  const auto result =
      ended(0, run_command({"prof", "merge", folder.path(), "-o", folder / "all.json", "--torch",
                            "0=" + (folder / "old.trace").string(), "--torch",
                            "1=" + (folder / "new.trace").string()}));
  const Json merged = parse(folder / "all.json");
  const Json here = named(events_of(merged, 1'000'000, "X"), "aten::mm");
  CHECK(here.at("ts").get<double>() == Approx(1.02e6).epsilon(1e-6));
  const Json of_ronde = events_of(merged, 0, "s").front().at("id");
  const Json of_torch = events_of(merged, 1'000'000, "s").front().at("id");
  CHECK((of_ronde.is_number_integer() && of_torch.is_number_integer() && of_ronde != of_torch));
  const Json there = named(events_of(merged, 1'001'000, "X"), "aten::mm");
  CHECK(there.at("ts").get<double>() == Approx(3.02e6 + 20).epsilon(1e-6));

  write_bytes(folder / "legacy.trace", "[]");
  std::ostringstream out;
  CHECK_THROWS_WITH(
      ronde::prof::merge_timeline(folder.path(), folder / "x.json", {{0, folder / "legacy.trace"}},
                                  out),
      Contains("legacy.trace is no trace of LibTorch's profiler") && Contains("RecordProfile"));
  CHECK_THROWS_WITH(ronde::prof::merge_timeline(folder.path(), folder / "x.json",
                                                {{5, folder / "old.trace"}}, out),
                    Contains("the timeline has no file of rank 5"));
  CHECK(run_command({"prof", "merge", folder.path(), "--torch", "x"}).exit_code == 2);
}

TEST_CASE(
    "files for Holistic Trace Analysis link each kernel to a launch, and say that it is none") {
  const TemporaryFolder folder;
  write_drifting(folder);
  const auto result = ended(0, run_command({"prof", "merge", "--hta", folder.path()}));
  const std::string text = read_text(folder / "hta/rank1.json");
  CHECK_THAT(text, Contains("\"rank\": 1"));  // HTA looks for it by a pattern with a space
  const Json trace = Json::parse(text);
  CHECK_THAT(trace.at("distributedInfo").at("synthetic").get<std::string>(), Contains("ronde"));
  std::map<int, std::vector<std::string>> by_correlation;
  std::set<std::string> names;
  for (const Json& event : events_of(trace, 1, "X")) {
    CHECK_THAT(event.at("args").at("ronde").get<std::string>(), Contains("synthetic"));
    names.insert(event.at("name"));
    if (!event.at("args").contains("correlation")) continue;
    by_correlation[event.at("args").at("correlation")].push_back(event.at("cat"));
    if (event.at("cat") == "kernel") CHECK(event.at("args").at("stream").get<int>() > 0);
  }
  REQUIRE(by_correlation.size() == 4);  // backward, and three buckets
  for (const auto& [correlation, categories] : by_correlation) {
    CHECK(categories == std::vector<std::string>{"cuda_runtime", "kernel"});
  }
  for (const char* name :
       {"ProfilerStep#3", "nccl:all_reduce", "ncclKernel_AllReduce", "backward", "load batch"}) {
    CHECK(names.contains(name));
  }
}

}  // namespace

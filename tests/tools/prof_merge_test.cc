// SPDX-License-Identifier: Apache-2.0
// `ronde prof merge`, and timelines that are cut.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <sstream>
#include <string>

#include "ronde/error.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/prof_fixtures.h"
#include "tests/tools/ronde_command.h"
#include "tools/prof/merge/merge.h"
#include "tools/prof/read/profile.h"

namespace {

using Catch::Contains;
using ronde::prof::TraceHead;
using ronde::test::Json;
using ronde::test::read_text;
using ronde::test::run_command;
using ronde::test::TemporaryFolder;
using ronde::test::TracedRank;
using ronde::test::write_bytes;

/// Rank 1's clock is 2 s behind at its time 1 s, and loses 1 ms more in the second after that.
TracedRank drifting_rank() {
  TracedRank traced;
  traced.rank = 1;
  traced.clock = {{"offset_us", 2e6}, {"at_us", 1e6}, {"wall_minus_monotonic_us", 5e6}};
  traced.end = {{"events_lost", 3}, {"end_offset_us", 2e6 + 1e3}, {"end_at_us", 2e6}};
  return traced;
}

void write_timeline(const TemporaryFolder& folder, const std::vector<TracedRank>& ranks) {
  for (const TracedRank& each : ranks) {
    write_bytes(folder / ("rank" + std::to_string(each.rank) + ".json"), each.text());
  }
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
  write_timeline(folder, {TracedRank(), drifting_rank()});
  const auto result = run_command({"prof", "merge", folder.path().string()});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK_THAT(result.out, Contains("28 events of 2 ranks on rank 0's clock") &&
                             Contains("rank 1's file lacks 3 events"));
  const Json merged = Json::parse(read_text(folder / "merged.json"));
  CHECK(merged.at("distributedInfo") == Json{{"backend", "ronde"}, {"rank", 0}, {"world_size", 2}});
  const Json here = named(events_of(merged, 0, "X"), "backward");
  CHECK(here.at("ts").get<double>() == Approx(1.01e6).epsilon(1e-12));
  CHECK(here.at("dur") == 50e3);
  const Json there = named(events_of(merged, 1, "X"), "backward");
  CHECK(there.at("ts").get<double>() == Approx(3.01e6 + 10).epsilon(1e-12));
  CHECK(there.at("dur").get<double>() == Approx(50e3 + 50).epsilon(1e-12));
  // Flow events of one bucket meet by their id, operations of two ranks must not.
  CHECK(events_of(merged, 0, "s").front().at("id") == events_of(merged, 1, "f").front().at("id"));
  CHECK(events_of(merged, 0, "b").front().at("id") == "r0.7");
  CHECK(events_of(merged, 1, "e").front().at("id") == "r1.7");
  // What is merged can be read like what was written.
  CHECK(ronde::prof::read_trace(folder / "merged.json", [](const Json&) {}).events == 28 + 4);
}

TEST_CASE("a timeline cut at any byte keeps the events whose lines are complete") {
  const TemporaryFolder folder;
  const TracedRank traced = drifting_rank();
  const std::string whole = traced.text();
  write_bytes(folder / "rank0.json", TracedRank().text());
  std::vector<std::size_t> ends;  // of the events, without a comma behind
  for (const Json& event : traced.events()) {
    ends.push_back(whole.find(event.dump(), ends.empty() ? 0 : ends.back()) + event.dump().size());
  }
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    INFO(size << " of " << whole.size() << " bytes");
    write_bytes(folder / "rank1.json", whole.substr(0, size));
    const auto lines = static_cast<double>(std::ranges::upper_bound(ends, size) - ends.begin());
    double visited = 0;
    const TraceHead head =
        ronde::prof::read_trace(folder / "rank1.json", [&](const Json&) { ++visited; });
    REQUIRE(head.rank == 1);
    REQUIRE(head.events == lines);
    REQUIRE(visited == lines);
    REQUIRE(head.damaged_lines.empty());
    REQUIRE(head.cut == (size < whole.size() - 1));
    if (size % 97 != 0) continue;
    std::ostringstream said;
    ronde::prof::merge_timeline(folder.path(), folder / "merged.json", {}, said);
    REQUIRE(said.str().starts_with("rank 1's file is cut after") == head.cut);
    REQUIRE(Json::parse(read_text(folder / "merged.json")).at("traceEvents").size() ==
            14 + 4 + static_cast<std::size_t>(lines));
    REQUIRE(ronde::prof::read_run(folder.path()).per_rank.size() == 2);
  }
}

TEST_CASE("a damaged line of a timeline is left out, and told") {
  const TemporaryFolder folder;
  std::string text = TracedRank().text();
  text.replace(text.find("\"backward\""), 1, "}");
  write_bytes(folder / "rank0.json", text);
  std::ostringstream said;
  ronde::prof::merge_timeline(folder.path(), folder / "merged.json", {}, said);
  CHECK_THAT(said.str(), Contains("rank 0's file has 1 damaged line") &&
                             Contains("the first is line 14") && Contains("no file of rank 1"));
}

TEST_CASE("timelines of two runs, of a newer layout or without an event are refused") {
  const TemporaryFolder folder;
  TracedRank other = drifting_rank();
  other.ranks = 4;
  write_timeline(folder, {TracedRank(), other});
  const auto merge = [&] {
    std::ostringstream out;
    ronde::prof::merge_timeline(folder.path(), folder / "merged.json", {}, out);
  };
  CHECK_THROWS_WITH(merge(), Contains("rank0.json is of 2 ranks and") && Contains("of 4"));
  std::string newer = TracedRank().text();
  newer.replace(newer.find("\"timeline\":1"), 12, "\"timeline\":2");
  write_bytes(folder / "rank1.json", newer);
  CHECK_THROWS_WITH(merge(), Contains("rank1.json has layout 2"));
  for (const char* name : {"rank0.json", "rank1.json"}) write_bytes(folder / name, "{");
  CHECK_THROWS_WITH(merge(), Contains("holds no complete event"));
  CHECK_FALSE(std::filesystem::exists(folder / "merged.json"));
  write_timeline(folder, {TracedRank()});
  const auto result =
      run_command({"prof", "merge", folder.path().string(), "-o", "/nowhere/merged.json"});
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, Contains("/nowhere/merged.json cannot be written: No such file"));
}

TEST_CASE("a timeline is never overwritten by what is made of it") {
  const TemporaryFolder folder;
  write_timeline(folder, {TracedRank(), drifting_rank()});
  const std::string before = read_text(folder / "rank1.json");
  const std::string path = folder.path().string();
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--hta", "-o", path + "/."}, {"-o", path + "/rank1.json"}}) {
    std::vector<std::string> words = {"prof", "merge", path};
    words.insert(words.end(), options.begin(), options.end());
    const auto result = run_command(words);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains("of the timeline itself: write to another one"));
    CHECK(read_text(folder / "rank1.json") == before);
  }
  write_bytes(folder / "p.rank0.json", "{}");  // a profile is no part of it
  CHECK(ronde::prof::trace_files(folder.path()).size() == 2);
}

TEST_CASE("an arrow between ranks begins where its message began first") {
  const TemporaryFolder folder;
  TracedRank second;
  second.rank = 1;
  second.clock = {{"offset_us", -5.0}, {"at_us", 0.0}};
  write_timeline(folder, {TracedRank{}, second});
  REQUIRE(run_command({"prof", "merge", folder.path().string()}).exit_code == 0);
  const Json merged = Json::parse(read_text(folder / "merged.json"));
  CHECK(events_of(merged, 0, "s").empty());
  CHECK(events_of(merged, 0, "f").front().at("bp") == "e");
  CHECK(!events_of(merged, 1, "s").front().contains("bp"));
}

TEST_CASE("LibTorch's own trace comes onto the same clock, whichever time it counts from") {
  const TemporaryFolder folder;
  TracedRank first;
  first.clock = {{"wall_minus_monotonic_us", 1e15}};
  write_timeline(folder, {first, drifting_rank()});
  const Json op = {{"ph", "X"},   {"cat", "cpu_op"}, {"name", "aten::mm"},
                   {"pid", 4711}, {"tid", 4711},     {"dur", 5}};
  Json absolute = op;
  absolute["ts"] = 1e15 + 1.02e6;
  Json flow = absolute;
  flow["ph"] = "s";
  flow["id"] = 3;
  write_bytes(folder / "old.trace", Json{{"traceEvents", {absolute, flow}}}.dump());
  Json relative = op;
  relative["pid"] = 0;  // a device
  relative["ts"] = 6.02e6 - 4e6;
  write_bytes(folder / "new.trace",
              Json{{"baseTimeNanoseconds", 4'000'000'000}, {"traceEvents", {relative}}}.dump());
  const auto result = run_command(
      {"prof", "merge", folder.path().string(), "-o", (folder / "all.json").string(), "--torch",
       "0=" + (folder / "old.trace").string(), "--torch", "1=" + (folder / "new.trace").string()});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const Json merged = Json::parse(read_text(folder / "all.json"));
  const Json here = named(events_of(merged, 1'000'000, "X"), "aten::mm");
  CHECK(here.at("ts").get<double>() == Approx(1.02e6).epsilon(1e-9));
  const Json of_ronde = events_of(merged, 0, "s").front().at("id");
  const Json of_torch = events_of(merged, 1'000'000, "s").front().at("id");
  CHECK((of_ronde.is_number_integer() && of_torch.is_number_integer() && of_ronde != of_torch));
  const Json there = named(events_of(merged, 1'001'000, "X"), "aten::mm");
  CHECK(there.at("ts").get<double>() == Approx(3.02e6 + 20).epsilon(1e-9));

  write_bytes(folder / "legacy.trace", "[]");
  std::ostringstream out;
  CHECK_THROWS_WITH(
      ronde::prof::merge_timeline(folder.path(), folder / "x.json", {{0, folder / "legacy.trace"}},
                                  out),
      Contains("legacy.trace is no trace of LibTorch's profiler") && Contains("RecordProfile"));
  CHECK_THROWS_WITH(ronde::prof::merge_timeline(folder.path(), folder / "x.json",
                                                {{5, folder / "old.trace"}}, out),
                    Contains("the timeline has no file of rank 5"));
  CHECK(run_command({"prof", "merge", folder.path().string(), "--torch", "x"}).exit_code == 2);
}

TEST_CASE(
    "files for Holistic Trace Analysis link each kernel to a launch, and say that it is none") {
  const TemporaryFolder folder;
  write_timeline(folder, {TracedRank(), drifting_rank()});
  const auto result = run_command({"prof", "merge", "--hta", folder.path().string()});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
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

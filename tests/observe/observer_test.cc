// SPDX-License-Identifier: Apache-2.0
// Profiles, timelines and dumps of groups whose ranks are threads.
#include "observe/observer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <future>
#include <iterator>
#include <latch>
#include <set>

#include "core/src/base/json.h"
#include "observe/base/figures_json.h"
#include "observe/timeline/timeline.h"
#include "ronde/error.h"
#include "tests/observe/observed_ranks.h"
#include "tests/support/harness/captured_errors.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/support/ranks/faulty_group.h"

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using Json = nlohmann::json;

namespace {

Json parse(const std::filesystem::path& path) {
  return Json::parse(read_text(path));
}

std::map<std::string, int> slices_by_name(const Json& trace, const std::string& phase) {
  std::map<std::string, int> names;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) ++names[event.at("name").get<std::string>()];
  }
  return names;
}

bool has_happened(const Runtime& runtime, const std::string& operation, EventKind kind) {
  const std::vector<Event> events = runtime.recent_events();
  const auto submitted = std::ranges::find(events, operation, &Event::text);
  return submitted != events.end() && std::ranges::any_of(events, [&](const Event& event) {
           return event.operation == submitted->operation && event.kind == kind;
         });
}

}  // namespace

TEST_CASE("the profile of a run has the figures of each rank, and merged ones") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.profile = folder / "sub/run.json";
  run_observed(3, config, [](int, Runtime& runtime, Observer&) { return train(runtime, 10); });
  const Json profile = parse(config.profile);
  CHECK(profile.at("ronde_profile") == 1);
  CHECK(profile.at("complete") == true);
  CHECK(profile.at("ranks") == 3);
  CHECK(profile.at("missing_ranks").empty());
  CHECK(profile.at("config").at("RONDE_FUSION_BYTES") == "64MiB");
  REQUIRE(profile.at("per_rank").size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const Json& figures = profile.at("per_rank").at(static_cast<std::size_t>(rank));
    CHECK(figures.at("rank") == rank);
    CHECK(figures.at("operations").at("count") == 20);
    CHECK(figures.at("steps").at("samples") == 80);
    CHECK(figures.at("steps").at("time").at("count") == 9);
    int tensors = 0;
    for (const Json& messages : figures.at("messages")) {
      tensors += messages.at("tensors").get<int>();
      CHECK(messages.at("phases").at("communicate").at("count") == messages.at("count"));
    }
    CHECK(tensors == 20);
    CHECK(figures.at("steps").at("backward").at("count") == 10);
    CHECK(figures.at("spans").at(0).at("bytes") == 640);
    CHECK(figures.at("events").at("lost") == 0);
    CHECK(figures.at("counters").at("execution").at("tensors") == 20);
  }
  const Json& merged = profile.at("merged");
  CHECK(merged.at("steps").at("count") == 10);
  CHECK(merged.at("steps").at("samples") == 240);
  CHECK(merged.at("operations").at("count") == 60);
}

TEST_CASE("a profile of 1 is printed as the report of ronde prof") {
  Config config = test_config();
  config.profile = "1";
  const CapturedErrors errors;
  run_observed(2, config, [](int, Runtime& runtime, Observer&) { return train(runtime, 10); });
  CHECK_THAT(errors.text(), Contains("\nRun: 2 ranks on 1 host, 10 steps, ") &&
                                Contains("\nPhases of a rank's messages\n") &&
                                Contains("load \"batch\""));
}

TEST_CASE("the profile of a run that tuned itself has the settings at its end") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.profile = folder / "run.json";
  config.autotune = true;
  config.log_level = "error";
  run_observed(2, config, [](int, Runtime& runtime, Observer&) { return train(runtime, 60); });
  const Json profile = parse(config.profile);
  for (const Json& figures : profile.at("per_rank")) {
    const Json& tuning = figures.at("counters").at("tuning");
    CHECK(tuning.at("changes") > 0);
    if (figures.at("rank") != 0) continue;  // a change may have been under way
    Config in_force;
    in_force.fusion_bytes = tuning.at("fusion_bytes");
    in_force.cycle_time_ms = tuning.at("cycle_time_us").get<double>() / 1e3;
    in_force.freeze_after_steps = tuning.at("freeze_after_steps");
    for (const ConfigEntry& entry : config_table()) {
      if (entry.name != "RONDE_FUSION_BYTES" && entry.name != "RONDE_CYCLE_TIME_MS" &&
          entry.name != "RONDE_FREEZE_AFTER_STEPS")
        continue;
      CHECK(profile.at("config").at(entry.name) == entry.get(in_force));
    }
  }
}

TEST_CASE("figures are the same after they were written and read") {
  run_group(2, [](int rank, Runtime& runtime) {
    train(runtime, 5);
    const Figures figures = runtime.figures();
    const auto json = to_json(figures, rank);
    check(to_json(figures_from_json(json), rank) == json, "the same figures");
  });
}

TEST_CASE("each rank of a failed group writes its own profile") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.profile = folder / "run.json";
  std::latch trained(2);
  run_observed(2, config, [&](int rank, Runtime& runtime, Observer&) {
    train(runtime, 3);
    trained.arrive_and_wait();
    if (rank == 1) runtime.abort("the loss is NaN");
    check_contains(death_in_barrier(runtime).text, "the loss is NaN");
    return false;
  });
  CHECK_FALSE(std::filesystem::exists(folder / "run.json"));
  for (const int rank : {0, 1}) {
    const Json profile = parse(folder / ("run.rank" + std::to_string(rank) + ".json"));
    CHECK(profile.at("complete") == false);
    CHECK_THAT(profile.at("failure").get<std::string>(), Contains("the loss is NaN"));
    CHECK(profile.at("missing_ranks") == std::vector<int>{1 - rank});
    CHECK(profile.at("merged").at("steps").at("count") == 3);
  }
}

TEST_CASE("a timeline has every step, tensor, message, wait and span, in PyTorch's layout") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.timeline = folder.path();
  run_observed(2, config, [](int, Runtime& runtime, Observer&) { return train(runtime, 10); });
  std::vector<std::set<std::uint64_t>> flows(2);
  for (const int rank : {0, 1}) {
    const Json trace = parse(folder / ("rank" + std::to_string(rank) + ".json"));
    CHECK(trace.at("schemaVersion") == 1);
    CHECK(trace.at("distributedInfo").at("rank") == rank);
    CHECK(trace.at("distributedInfo").at("world_size") == 2);
    const Json& end = trace.at("ronde_end");
    CHECK(end.at("events_lost") == 0);
    const Figures figures = figures_from_json(end.at("figures"));
    CHECK((figures.steps == 10 && figures.samples == 80 && figures.operations == 20));
    CHECK(figures.spans.at("load \"batch\"\n").bytes == 640);
    CHECK(end.at("figures").at("counters").at("execution").at("tensors") == 20);
    auto begun = slices_by_name(trace, "b"), ended = slices_by_name(trace, "e");
    CHECK(begun.at("layer1.weight") == 10);
    CHECK(begun == ended);
    auto slices = slices_by_name(trace, "X");
    CHECK(slices.at("load \"batch\"\n") == 10);
    CHECK(slices.at("backward") == 10);
    CHECK(slices.at("step 2") == 1);
    int messages = 0;
    for (const Json& event : trace.at("traceEvents")) {
      const std::string phase = event.at("ph");
      REQUIRE(event.contains("pid"));
      if (phase == "M") continue;
      REQUIRE(event.at("ts").get<double>() > 0);
      if (phase == "s" || phase == "f")
        flows[static_cast<std::size_t>(rank)].insert(event.at("id").get<std::uint64_t>());
      if (phase != "X") continue;
      REQUIRE(event.at("dur").get<double>() >= 0);
      const bool is_message = event.value("cat", "") == "communication";
      if (is_message && event.at("args").contains("bucket")) ++messages;
    }
    CHECK(messages >= 10);
    CHECK(flows[static_cast<std::size_t>(rank)].size() == static_cast<std::size_t>(messages));
  }
  CHECK(flows[0] == flows[1]);
}

TEST_CASE("buckets in progress at once have tracks of their own, as slices of one do not overlap") {
  const TemporaryFolder folder;
  Timeline timeline(folder / "rank0.json", {.rank = 0, .size = 1, .host = "h"},
                    [] { return std::vector<ClockOffset>(); });
  std::vector<Event> events;
  const auto happens = [&](EventKind kind, std::uint64_t bucket, std::uint32_t set = 0) {
    Event& event = events.emplace_back();
    event.time_ns = static_cast<std::int64_t>(1000 * events.size());
    event.kind = kind;
    event.bucket = bucket;
    event.set = set;
  };
  happens(EventKind::Started, 1);
  happens(EventKind::Started, 2);
  happens(EventKind::Started, 1, 5);
  happens(EventKind::Finished, 1);
  happens(EventKind::Started, 3);
  happens(EventKind::Finished, 2);
  happens(EventKind::Finished, 3);
  happens(EventKind::Finished, 1, 5);
  timeline.take(events, 0);
  std::map<int, std::vector<int>> buckets;  // by track
  std::set<std::string> tracks;
  const Json trace = parse(timeline.path());
  for (const Json& event : trace.at("traceEvents")) {
    const Json& args = event.at("args");
    if (event.at("name") == "thread_name") tracks.insert(args.at("name").get<std::string>());
    if (args.contains("bucket")) buckets[event.at("tid").get<int>()].push_back(args.at("bucket"));
  }
  REQUIRE(buckets.size() == 3);
  CHECK(buckets.at(3) == std::vector<int>{1, 3});
  CHECK(buckets.at(1005) == std::vector<int>{1});
  CHECK(std::prev(buckets.end())->second == std::vector<int>{2});
  for (const char* const name : {"communication", "communication, 2", "communication of set 5"}) {
    CHECK(tracks.contains(name));
  }
}

TEST_CASE("rank 0 joins the timelines in one file where that is asked for") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.timeline = folder / "all.json";
  run_observed(3, config, [](int, Runtime& runtime, Observer&) { return train(runtime, 5); });
  const Json trace = parse(folder / "all.json");
  std::set<int> ranks;
  for (const Json& event : trace.at("traceEvents")) ranks.insert(event.at("pid").get<int>());
  CHECK(ranks == std::set<int>{0, 1, 2});
  CHECK(slices_by_name(trace, "b").at("layer1.weight") == 15);
}

TEST_CASE("where ranks name different timelines, or none, that of rank 0 counts") {
  const TemporaryFolder folder;
  const inproc::Group group({0, 0, 1});
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    if (rank < 2) config.timeline = folder / ("of" + std::to_string(rank));
    Runtime runtime(options_of(group, rank, config));
    Observer observer(runtime, nullptr);
    train(runtime, 2);
    observer.shutdown();
  });
  CHECK(std::filesystem::exists(folder / "of0/rank0.json"));
  CHECK(std::filesystem::exists(folder / "of0/rank1.json"));
  CHECK(std::filesystem::exists(folder / "of0/rank2.json"));
  CHECK_FALSE(std::filesystem::exists(folder / "of1"));
}

TEST_CASE("timelines of which one was cut are not joined") {
  const TemporaryFolder folder;
  const std::string whole = "{\n\"traceEvents\":[\n{}\n],\n}\n";
  write_bytes(folder / "rank0.json", whole);
  write_bytes(folder / "rank1.json", whole.substr(0, whole.size() - 6));
  const std::string path = folder / "all.json";
  check_contains(text_of<Error>([&] { merge_timeline_folder(folder.path(), 2, path); }),
                 "rank1.json was cut");
  const std::filesystem::directory_iterator files(folder.path());
  CHECK(std::distance(begin(files), end(files)) == 2);
}

TEST_CASE("a timeline can be started and stopped while the group runs") {
  const TemporaryFolder folder;
  run_observed(2, test_config(), [&](int, Runtime& runtime, Observer& observer) {
    train(runtime, 3);
    observer.start_timeline(folder.path());
    check_contains(text_of<UsageError>([&] { observer.start_timeline(folder.path()); }),
                   "stop it first");
    train(runtime, 4);
    observer.stop_timeline();
    check_contains(text_of<UsageError>([&] { observer.stop_timeline(); }), "no timeline");
    return train(runtime, 2);
  });
  const Json trace = parse(folder / "rank1.json");
  CHECK(slices_by_name(trace, "b").at("layer1.weight") == 4);
}

TEST_CASE("paths that cannot be written end nothing but what would be written there") {
  Config config = test_config();
  config.profile = "/proc/no/profile.json";
  config.timeline = "/proc/no/timeline";
  config.dump = "/proc/no/dump";
  config.metrics = "/proc/no/x.prom";
  run_observed(2, config, [](int rank, Runtime& runtime, Observer& observer) {
    train(runtime, 3);
    check_contains(text_of<Error>([&] { observer.dump(); }),
                   "/proc/no/dump/rank" + std::to_string(rank) + ".json cannot be written");
    return train(runtime, 3);
  });
}

TEST_CASE("a dump says what every operation and thread of a rank waits for") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.dump = folder.path();
  std::promise<const Runtime*> waiting;
  run_observed(2, config, [&](int rank, Runtime& runtime, Observer& observer) {
    train(runtime, 3);
    std::vector<float> values(10, 1.0F);
    if (rank == 0) {
      const Work lonely = runtime.submit(sum_request(values, "lonely"));
      observer.dump();
      waiting.set_value(&runtime);
      check_contains(death_of([&] { lonely.wait(); }).text, "enough");
      return false;
    }
    const RuntimeSpan span(runtime, "load batch");
    observer.dump();
    const Json mine = parse(folder / "rank1.json");
    check(mine.at("reason") == "request", "the reason");
    bool loads = false;
    for (const Json& thread : mine.at("threads")) {
      loads = loads || (thread.at("doing") == "span" && thread.at("what") == "load batch");
    }
    check(loads, "what the thread does");
    const Runtime& other = *waiting.get_future().get();
    for (const EventKind kind : {EventKind::Announced, EventKind::WaitBegun}) {
      check_soon([&] { return has_happened(other, "lonely", kind); }, "rank 0 waits");
    }
    runtime.abort("enough");
    check_contains(death_in_barrier(runtime).text, "enough");
    return false;
  });
  // The last dump is that of the failure.
  const Json dump = parse(folder / "rank0.json");
  CHECK(dump.at("ronde_dump") == 1);
  CHECK(dump.at("reason") == "error");
  CHECK_THAT(dump.at("text").get<std::string>(), Contains("enough"));
  std::map<std::string, std::string> states;
  for (const Json& operation : dump.at("operations")) {
    states[operation.at("name")] = operation.at("state");
    CHECK(operation.at("ranks") == std::vector<int>{0, 1});
  }
  CHECK(states.at("layer1.weight") == "completed");
  CHECK(states.at("lonely") == "announced");  // as the failure found it
  bool waits = false;
  for (const Json& thread : dump.at("threads")) {
    waits = waits || (thread.at("doing") == "wait" && thread.at("what") == "allreduce 'lonely'");
  }
  CHECK(waits);
}

TEST_CASE("what an earlier run has left is not taken for this one's") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.dump = folder.path();
  config.profile = folder / "run.json";
  for (const char* const name : {"rank0.json", "run.json", "run.rank1.json"}) {
    write_bytes(folder / name, "{}");
  }
  run_observed(2, config, [&](int, Runtime& runtime, Observer&) {
    runtime.run(barrier_request());
    for (const char* const name : {"rank0.json", "run.json", "run.rank1.json"}) {
      check(!std::filesystem::exists(folder / name), name);
    }
    return true;
  });
}

TEST_CASE("SIGUSR2 has a rank dump, and before the ranks have met once they have") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.dump = folder.path();
  config.dump_on_sigusr2 = true;
  std::unique_ptr<DumpSignal> signal = wanted_signal(config);
  std::raise(SIGUSR2);
  const inproc::Group group(std::vector<int>{0});
  Runtime runtime(options_of(group, 0, config));
  Observer observer(runtime, std::move(signal));
  const std::filesystem::path file = folder / "rank0.json";
  check_soon([&] { return std::filesystem::exists(file); }, "a dump");
  std::filesystem::remove(file);
  train(runtime, 2);
  std::raise(SIGUSR2);
  check_soon([&] { return std::filesystem::exists(file); }, "another dump");
  CHECK(parse(file).at("reason") == "signal");
  observer.shutdown();
}

// SPDX-License-Identifier: Apache-2.0
// What watches a running group: metrics for Prometheus, and the socket of `ronde top`.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <set>

#include "core/src/base/json.h"
#include "observe/live/metrics.h"
#include "observe/live/top_socket.h"
#include "tests/observe/observed_ranks.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/support/processes/unix_socket.h"

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// The samples of Prometheus's text, by name and labels. Checks that each follows its type.
std::map<std::string, double> samples_in(const std::string& text) {
  std::map<std::string, double> samples;
  std::set<std::string> typed;
  std::string family;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.rfind(' ') - 7);
      check(typed.insert(family).second, "one type of " + family);
    }
    if (line.starts_with("#")) continue;
    check(line.starts_with(family), line + " belongs to " + family);
    const std::size_t end = line.rfind(' ');
    const bool is_new = samples.emplace(line.substr(0, end), std::stod(line.substr(end))).second;
    check(is_new, "one sample " + line);
  }
  return samples;
}

/// XDG_RUNTIME_DIR of this process, in which one case runs.
class RuntimeFolder {
 public:
  RuntimeFolder() { setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1); }
  ~RuntimeFolder() { unsetenv("XDG_RUNTIME_DIR"); }

  fs::path socket_of(int rank) const {
    return folder_ / ("ronde/" + std::to_string(getpid()) + "." + std::to_string(rank) + ".sock");
  }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

Json ask(const fs::path& path) {
  const sockaddr_un address = unix_address(path);
  const int client = socket(AF_UNIX, SOCK_STREAM, 0);
  check(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
        "a connection to " + path.string());
  const std::string text = read_socket(client);
  close(client);
  check(text.ends_with("\n"), "a whole line");
  return Json::parse(text);
}

}  // namespace

TEST_CASE("each rank writes its figures for Prometheus, with the numbers that it has") {
  const TemporaryFolder folder;
  Config config = test_config();
  config.metrics = folder / "sub/run.prom";
  run_observed(2, config, [&](int rank, Runtime& runtime, Observer& observer) {
    const fs::path file = folder / ("sub/run.rank" + std::to_string(rank) + ".prom");
    check_soon([&] { return fs::exists(file); }, "a file while the group runs");
    train(runtime, 10);
    observer.shutdown();
    const Figures figures = runtime.figures();
    const auto samples = samples_in(read_text(file));
    const std::string label = "{rank=\"" + std::to_string(rank) + "\"";
    const auto value = [&](const std::string& name, const std::string& labels = {}) {
      const auto found = samples.find(name + label + labels + "}");
      check(found != samples.end(), "a sample " + name + labels);
      return found->second;
    };
    check_equal(value("ronde_steps_total"), 10.0, "steps");
    check_equal(value("ronde_samples_total"), 80.0, "samples");
    check_equal(value("ronde_exposed_seconds_count"), static_cast<double>(figures.exposed.count()),
                "exposed times");
    check_equal(value("ronde_exposed_seconds_sum"),
                static_cast<double>(figures.exposed.total_ns()) * 1e-9, "exposed time");
    check_equal(value("ronde_span_bytes_total", R"(,span="load \"batch\"\n")"), 640.0,
                "bytes of spans");
    check_equal(value("ronde_execution_tensors"), 20.0, "tensors");
    check(value("ronde_resident_bytes") > 0, "memory");
    for (const auto& [exponent, messages] : figures.messages) {
      const std::string size = ",up_to_bytes=\"" + std::to_string(1ULL << exponent) + "\"";
      check_equal(value("ronde_message_bytes_total", size), static_cast<double>(messages.bytes),
                  "bytes");
      check_equal(value("ronde_message_seconds_count", size + ",phase=\"communicate\""),
                  static_cast<double>(messages.phase(Phase::Communicate).count()), "times");
    }
    for (const auto& [last_rank, last] : figures.last_ranks) {
      check_equal(
          value("ronde_last_rank_total", ",last_rank=\"" + std::to_string(last_rank) + "\""),
          static_cast<double>(last.count), "late messages");
    }
    return false;
  });
}

TEST_CASE("names of spans that are no UTF-8, and counters of sets, are labels of Prometheus") {
  Figures figures;
  figures.spans["a\xff\t\"\\\n"].bytes = 7;
  figures.counters = {{"execution", {{"buckets", 1}}}, {"execution of set 3", {{"buckets", 2}}}};
  const std::string text = prometheus_text(figures, SystemSample(), 5);
  const auto samples = samples_in(text);
  CHECK(samples.at("ronde_span_bytes_total{rank=\"5\",span=\"a\xEF\xBF\xBD \\\"\\\\\\n\"}") == 7);
  CHECK(samples.at("ronde_execution_buckets{rank=\"5\"}") == 1);
  CHECK(samples.at("ronde_execution_buckets{rank=\"5\",set=\"3\"}") == 2);
}

TEST_CASE("a cuda GPU's NVLink counters become rates, which are never negative") {
  std::uint64_t total = 5'000'000;
  bool is_lost = false;
  SystemSampler sampler([&] {
    return is_lost ? GpuReading() : GpuReading{{{"gpu_used_bytes", 7}}, {{"sent", total}}};
  });
  const auto rate = [&] { return sampler.sample().gpu.at("sent_per_s"); };
  CHECK(rate() == 0);  // nothing to compare it with
  const auto begin = std::chrono::steady_clock::now();
  CHECK(rate() == 0);
  total += 1'000'000;
  const double sent_per_s = rate();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  CHECK(sent_per_s * passed.count() >= 1'000'000);
  total = 10;  // it has wrapped, or the driver was reset
  CHECK(rate() == 0);
  total = 20;
  CHECK(rate() > 0);
  is_lost = true;
  CHECK(sampler.sample().gpu.empty());
  is_lost = false;
  total += 1'000'000'000;  // in nobody knows what time
  CHECK(rate() == 0);
  CHECK(sampler.sample().gpu.at("gpu_used_bytes") == 7);
  CHECK(SystemSampler().sample().gpu.empty());
}

TEST_CASE("figures of a cuda GPU are in metrics, timeline and socket of the rank that has one") {
  const RuntimeFolder folder;
  Config config = test_config();
  config.top = true;
  config.metrics = folder.folder() / "run.prom";
  config.timeline = folder.folder() / "timeline";
  const auto read_gpu = [] {
    return GpuReading{{{"gpu_utilization_percent", 93}}, {{"nvlink_sent_bytes", 1}}};
  };
  const auto body = [&](int rank, Runtime& runtime, Observer&) {
    train(runtime, 5);
    const Json system = ask(folder.socket_of(rank)).at("system");
    check_equal(system.value("gpu_utilization_percent", -1.0), rank == 0 ? 93.0 : -1.0, "percent");
    check_equal(system.contains("nvlink_sent_bytes_per_s"), rank == 0, "traffic");
    return true;
  };
  run_observed(2, config, body, read_gpu);
  for (const int rank : {0, 1}) {
    const std::string name = "rank" + std::to_string(rank);
    const auto samples = samples_in(read_text(folder.folder() / ("run." + name + ".prom")));
    const std::string label = "{rank=\"" + std::to_string(rank) + "\"}";
    CHECK(samples.contains("ronde_gpu_utilization_percent" + label) == (rank == 0));
    CHECK(samples.contains("ronde_nvlink_sent_bytes_per_second" + label) == (rank == 0));
    std::map<std::string, double> counters;
    const Json trace = Json::parse(read_text(folder.folder() / ("timeline/" + name + ".json")));
    for (const Json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "C" || !event.at("args").contains("value")) continue;
      counters[event.at("name")] = event.at("args").at("value");
    }
    using Counters = std::map<std::string, double>;
    CHECK(counters ==
          (rank > 0 ? Counters()
                    : Counters{{"gpu_utilization_percent", 93}, {"nvlink_sent_bytes_per_s", 0}}));
  }
}

TEST_CASE("whoever connects to a rank's socket learns what it does") {
  const RuntimeFolder folder;
  Config config = test_config();
  config.top = true;
  run_observed(2, config, [&](int rank, Runtime& runtime, Observer&) {
    train(runtime, 5);
    struct stat status {};
    check(stat(folder.socket_of(rank).c_str(), &status) == 0, "a socket");
    check_equal(status.st_mode & 0777, 0600U, "its mode");
    check(stat((folder.folder() / "ronde").c_str(), &status) == 0, "a folder");
    check_equal(status.st_mode & 0777, 0700U, "its mode");
    for (int again = 0; again < 2; ++again) {
      const Json answer = ask(folder.socket_of(rank));
      check_equal(answer.at("ronde_top").get<int>(), 1, "the layout");
      check_equal(answer.at("rank").get<int>(), rank, "the rank");
      check_equal(answer.at("ranks").get<int>(), 2, "the size");
      check_equal(answer.at("pid").get<int>(), getpid(), "the process");
      check_equal(answer.at("program").get<std::string>().substr(0, 13),
                  std::string("observe_tests"), "the program");
      check_equal(answer.at("figures").at("steps").at("count").get<int>(), 5, "steps");
      check(!answer.at("figures").at("operations").at("wait").contains("histogram"), "short");
      check(answer.at("system").at("resident_bytes") > 0, "memory");
    }
    return true;
  });
  CHECK(fs::is_empty(folder.folder() / "ronde"));
}

TEST_CASE("a socket that was left is replaced, and what is no socket stays") {
  const RuntimeFolder folder;
  fs::create_directory(folder.folder() / "ronde");
  fs::permissions(folder.folder() / "ronde", fs::perms::owner_all);
  leave_socket(folder.socket_of(0));
  write_bytes(folder.socket_of(1), "mine");
  Config config = test_config();
  config.top = true;
  run_observed(2, config, [&](int rank, Runtime& runtime, Observer&) {
    train(runtime, 2);
    if (rank == 0) check_equal(ask(folder.socket_of(0)).at("rank").get<int>(), 0, "the rank");
    return true;
  });
  CHECK_FALSE(fs::exists(folder.socket_of(0)));
  CHECK(read_text(folder.socket_of(1)) == "mine");
}

TEST_CASE("a folder that others may enter, or a path that is too long, gets no socket") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(check_top_folder(folder.path()));
  fs::permissions(folder.path(), fs::perms::owner_all | fs::perms::group_read);
  CHECK_THROWS_WITH(check_top_folder(folder.path()), Contains("of this user alone"));
  const RuntimeFolder other;
  const std::string deep = other.folder() / std::string(100, 'x');
  fs::create_directory(deep);
  setenv("XDG_RUNTIME_DIR", deep.c_str(), 1);
  run_group(1, [](int, Runtime& runtime) {
    check_contains(text_of<Error>([&] { TopSocket(runtime, "host"); }), "too long for a socket");
  });
}

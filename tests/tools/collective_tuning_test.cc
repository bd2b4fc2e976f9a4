// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

#include "ronde/algorithms.h"
#include "ronde/build_info.h"
#include "tests/support/processes/beside.h"
#include "tests/tools/bench_command.h"
#include "tests/tools/ronde_command.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Catch::Contains;
using nlohmann::json;

/// The command on four ranks, half of them on a host of its own if there are two.
Words command_of(int hosts, const Words& words) {
  Words line = {RONDE_LAUNCHER};
  for (int host = 0; host < hosts; ++host) {
    if (host > 0) line.emplace_back(":");
    line.insert(line.end(), {RONDE_LAUNCHER_COUNT, std::to_string(4 / hosts), "/usr/bin/env",
                             "RONDE_HOST_ID=host" + std::to_string(host), RONDE_COMMAND});
    line.insert(line.end(), words.begin(), words.end());
  }
  return line;
}

CommandResult tune(int hosts, const std::string& out,
                   const std::map<std::string, std::string>& environment = {}) {
  return run_program(
      command_of(hosts, {"tune", "--collectives", "--min", "1KiB", "--max", "4KiB", "--out", out}),
      environment);
}

json settings_in(const std::string& file) {
  return json::parse(read_text(file));
}

/// A file for RONDE_TUNED with these rules.
void write_rules(const std::string& file, int hosts, const std::string& rules) {
  const json settings = {{"ronde_tuned", 1},
                         {"version", build_info::kVersion},
                         {"finished", true},
                         {"model", "0123456789abcdef"},
                         {"ranks", 4},
                         {"hosts", hosts},
                         {"step_us", 0},
                         {"start_step_us", 0},
                         {"values", {{"RONDE_ALGORITHMS", rules}}}};
  write_bytes(file, settings.dump());
}

/// The rows of `ronde bench` with the cost model, on four ranks.
json bench(int hosts, Words words, std::map<std::string, std::string> environment) {
  const JsonFile file;
  words.insert(words.begin(), "bench");
  words.insert(words.end(), {"--model", "--iters", "2", "--warmup", "1", "--json", file.path()});
  const auto result = ended(0, run_program(command_of(hosts, words), environment));
  return file.rows();
}

}  // namespace

TEST_CASE("ronde tune --collectives measures the algorithms, and a run takes what it wrote") {
  const TemporaryFolder folder;
  const std::string out = folder / "tuned.json";
  const auto result = ended(0, tune(1, out));
  CHECK(result.err.empty());
  CHECK_THAT(result.out, Contains("allreduce of 4 ranks, medians in us:\n") &&
                             Contains("alltoall of 4 ranks, medians in us:\n") &&
                             Contains("rules between them count with RONDE_CPU_BACKEND=fabric") &&
                             Contains("use it with RONDE_TUNED=" + out));
  const json settings = settings_in(out);
  CHECK(settings.at("ranks") == 4);
  CHECK(settings.at("hosts") == 1);
  const std::string text = settings.at("values").at("RONDE_ALGORITHMS");
  CHECK_THAT(result.out, Contains("\nRONDE_ALGORITHMS=" + text + "\n"));
  const std::vector<AlgorithmRule> rules = parse_algorithm_rules(text);
  std::set<Collective> kinds;
  for (const AlgorithmRule& rule : rules) {
    kinds.insert(rule.collective);
    CHECK(rule.ranks == 4);
    CHECK((rule.bytes == 0 || rule.bytes == 2048 || rule.bytes == 4096));
  }
  CHECK(kinds.size() == 5);

  const AlgorithmTable table(rules);
  for (const Collective kind : kinds) {
    const json rows = bench(1, {std::string(to_string(kind)), "--min", "512", "--max", "8KiB"},
                            {{"RONDE_TUNED", out}, {"RONDE_CPU_BACKEND", "fabric"}});
    CHECK(rows.size() == 5);
    for (const json& row : rows) {
      const Algorithm algorithm = table.choose(kind, 4, row.at("bytes").get<std::uint64_t>());
      CHECK(row.at("algorithm") == std::string(to_string(algorithm)));
    }
  }
}

TEST_CASE("rules of a tuned file count on every backend between hosts, unless a variable forces") {
  const TemporaryFolder folder;
  const std::string file = folder / "tuned.json";
  write_rules(file, 2, "allreduce:pairwise,broadcast:van_de_geijn,broadcast/4:chain@2KiB");
  const auto algorithms = [&](const char* kind, const char* backend,
                              std::map<std::string, std::string> environment) {
    environment.insert({{"RONDE_TUNED", file}, {"RONDE_CPU_BACKEND", backend}});
    std::vector<std::string> seen;
    for (const json& row : bench(2, {kind, "--min", "1KiB", "--max", "4KiB"}, environment)) {
      seen.push_back(row.at("algorithm"));
    }
    return seen;
  };
  CHECK(algorithms("broadcast", "hierarchical", {}) == Words{"van_de_geijn", "chain", "chain"});
  CHECK(algorithms("broadcast", "fabric", {}) == Words{"van_de_geijn", "chain", "chain"});
  CHECK(algorithms("allreduce", "fabric", {}) == Words(3, "pairwise"));
  CHECK(algorithms("allreduce", "fabric", {{"RONDE_ALLREDUCE", "ring"}}) == Words(3, "ring"));
  CHECK(algorithms("allreduce", "fabric", {{"RONDE_ALGORITHMS", "allreduce:halving_doubling"}}) ==
        Words(3, "halving_doubling"));

  const std::string profile = folder / "profile.json";
  const auto run =
      ended(0, run_program(command_of(2, {"bench", "allreduce", "--min", "64KiB", "--max", "64KiB",
                                          "--iters", "2", "--model"}),
                           {{"RONDE_TUNED", file},
                            {"RONDE_CPU_BACKEND", "hierarchical"},
                            {"RONDE_PROFILE", profile}}));
  CHECK_THAT(run.out,
             Contains("no cost model: backend hierarchical runs no algorithm of a fabric"));
  CHECK_THAT(read_text(profile),
             Contains("\"rounds_pairwise\"") && !Contains("\"rounds_recursive"));
}

TEST_CASE("ronde tune --collectives tunes the levels of hosts, and keeps what the file has else") {
  const TemporaryFolder folder;
  const std::string out = folder / "tuned.json";
  write_rules(out, 2, "allreduce:ring");
  json settings = settings_in(out);
  settings["values"]["RONDE_FUSION_BYTES"] = "3MiB";
  write_bytes(out, settings.dump());
  const auto result = ended(0, tune(2, out));
  CHECK_THAT(result.out, Contains("allreduce of 2 hosts, medians in us:\n") &&
                             Contains("allreduce of 4 ranks, medians in us:\n"));
  settings = settings_in(out);
  CHECK(settings.at("values").at("RONDE_FUSION_BYTES") == "3MiB");
  CHECK(settings.at("model") == "0123456789abcdef");
  std::set<std::size_t> ranks;
  const std::string text = settings.at("values").at("RONDE_ALGORITHMS");
  for (const AlgorithmRule& rule : parse_algorithm_rules(text)) ranks.insert(rule.ranks);
  CHECK(ranks == std::set<std::size_t>{2, 4});
}

TEST_CASE("ronde tune --collectives says what is wrong before it measures") {
  const TemporaryFolder folder;
  const std::string out = folder / "tuned.json";
  const auto problem = [](const CommandResult& result, int code) {
    CHECK(result.exit_code == code);
    CHECK(result.out.find("medians") == std::string::npos);
    return result.err;
  };
  write_bytes(out, "{\"ronde_");
  CHECK_THAT(problem(tune(1, out), 2), Contains("ronde tune: --out: " + out +
                                                " has been written before, and it is damaged at "
                                                "byte ") &&
                                           Contains(". Remove it, or name another file\n"));
  CHECK(read_text(out) == "{\"ronde_");
  write_rules(out, 1, "allreduce:chain");
  CHECK_THAT(problem(tune(1, out), 2), Contains("\"chain\" is no algorithm of allreduce"));
  write_rules(out, 2, "allreduce:ring");
  CHECK_THAT(problem(tune(1, out), 2), Contains("was tuned for 4 ranks on 2 hosts"));
  CHECK_THAT(problem(run_command({"tune", "--collectives", "--out", out + "2"}), 2),
             Contains("a rank that is alone sends nothing. Start it as your job starts"));
  CHECK_THAT(problem(run_command({"tune", "--collectives", "--max", "many"}), 2),
             Contains("\"many\" is not a size"));
}

TEST_CASE("ronde tune --collectives writes no file if it cannot, or has found no rule") {
  CHECK_THAT(ended(1, tune(1, "/proc/none/tuned.json")).err,
             Contains("ronde tune: /proc/none/tuned.json: it cannot be written: "));
  const TemporaryFolder folder;
  const std::string out = folder / "tuned.json";
  const auto result = ended(1, run_program(command_of(1, {"tune", "--collectives", "--min", "1MiB",
                                                          "--max", "1MiB", "--out", out}),
                                           {{"RONDE_FUSION_BYTES", "64KiB"}}));
  CHECK_THAT(result.err,
             Contains("tuned.json: is not written: no call of the backend has as many"));
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("ronde bench --model prints the fitted parameters and the ratio to what is measured") {
  const JsonFile file;
  const auto result = ended(
      0,
      run_program(command_of(1, {"bench", "allreduce", "--backend", "fabric", "--model", "--min",
                                 "1KiB", "--max", "4MiB", "--iters", "3", "--json", file.path()})));
  CHECK_THAT(
      result.out,
      Contains("cost model (Hockney 1994, docs/networks.md), fitted to these rows: alpha ") &&
          Contains("p50/model"));
  const json rows = file.rows();
  REQUIRE(rows.size() == 13);
  for (const json& row : rows) {
    const double model = row.at("model_us");
    CHECK(model > 0);
    CHECK(row.at("model_ratio").get<double>() == Approx(row.at("p50_us").get<double>() / model));
    CHECK(row.at("alpha_us") >= 0);
    if (row.at("bytes") == 4 << 20) continue;  // parts of 2 MiB
    const CostTerms terms =
        cost_terms(Collective::Allreduce,
                   *parse_algorithm(Collective::Allreduce, row.at("algorithm").get<std::string>()),
                   4, row.at("bytes"));
    const LinkCosts costs = {row.at("alpha_us").get<double>() * 1e-6,
                             row.at("beta_ns").get<double>() * 1e-9,
                             row.at("gamma_ns").get<double>() * 1e-9};
    CHECK(model == Approx(costs.seconds(terms) * 1e6));
  }
  const auto other = ended(0, run_bench(2, {"allreduce", "--model", "--min", "1MiB", "--max",
                                            "1MiB", "--iters", "3", "--json", file.path()}));
  const auto fitted = [&file] {
    Words names;
    const json all = file.rows().at(0).at("costs").at("fitted");
    for (const auto& each : all.items()) {
      CHECK(each.value() >= 0.0);
      names.push_back(each.key());
    }
    return names;
  };
  CHECK(fitted() ==
        Words{"host.bytes_shared", "host.message_latency", "host.operation", "host.wake"});
  CHECK(file.rows().at(0).at("costs").at("default").at("host.round") == 1e-6);
  const JsonFile network;
  ended(0, run_bench(2, {"allreduce", "--model", "--raw", "--backend", "fabric", "--min", "64KiB",
                         "--max", "64KiB", "--iters", "3", "--json", network.path()}));
  const auto simulated =
      ended(0, run_program({RONDE_COMMAND, "sim", "--model", "edsr", "--compute-ms", "50",
                            "--ranks", "4", "--costs", file.path(), "--costs", network.path()}));
  CHECK_THAT(simulated.out, Contains("efficiency"));
  CHECK_THAT(other.out,
             Contains("no cost model: backend shm runs no algorithm of a fabric here for "
                      "allreduce; --backend fabric does"));
}

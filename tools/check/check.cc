// SPDX-License-Identifier: Apache-2.0
#include "tools/check/check.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <utility>

#include "backends/compose.h"
#include "ronde/error.h"
#include "tools/bench/bench.h"

namespace ronde::tool {
namespace {

/// The check of all transports.
class Check {
 public:
  explicit Check(Session& session) : session_(session), topology_(session.topology()) {
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    hosts_ = session.peers().all_of(name.data());
    report_.say(session.description());
    const bool is_crowded = topology_.local_size > topology_.local_cores;
    if (const auto host = session.first_of(is_crowded ? name.data() : ""); !host.empty()) {
      report_.say("note: ranks outnumber cores on " + host +
                  ": links of ranks that meet on one core seem slow");
    }
  }

  /// Throws CommonError if a byte was wrong, or nothing was checked.
  void run(const BackendRegistry& more) {
    Config config = load_config_from_environment().config;
    const BackendRegistry backends = compose_built_in(config).backends;
    const bool is_alone = topology_.local_size == 1;
    const std::string alone = session_.first_of(is_alone ? host(topology_.rank) : "");
    if (alone.empty()) {
      check("shm", backends.at("shm"), true);
    } else {
      report_.say("\nshm: not checked: " + alone + " has one rank only");
    }
    if (const auto mpi = backends.find("mpi"); mpi != backends.end()) check("mpi", mpi->second);
    config.fabric = "ucx";
    check("ucx", compose_built_in(config).backends.at("fabric"));
    for (const auto& [name, factory] : more) check(name, factory);
    if (!first_wrong_.empty()) throw CommonError("wrong data: " + first_wrong_);
    if (!has_checked_) throw CommonError("no transport of these ranks can be checked");
  }

 private:
  void check(const std::string& name, const BackendFactory& factory, bool is_within_host = false) {
    try {
      const MessagePath path = {name, session_.raw().add(factory), is_within_host};
      show(name, check_links(session_, path));
      has_checked_ = true;
    } catch (const UsageError& error) {  // of every rank, by the factory
      report_.say("\n" + name + ": not checked: " + error.what());
    }
  }

  void show(const std::string& transport, const std::vector<Link>& links) {
    show_matrix("latency in us over " + transport, links, &Link::latency_us, 2);
    show_matrix("GB/s over " + transport, links, &Link::bandwidth_gbs, 3);
    int messages = 0, wrong = 0;
    for (const Link& link : links) {
      const std::string name = fmt::format("rank {} ({}) -> rank {} ({}) over {}: ", link.from,
                                           host(link.from), link.to, host(link.to), transport);
      messages += link.messages;
      wrong += link.wrong;
      if (link.wrong > 0) {
        const std::string text = fmt::format("{}{} of {} messages; first {}", name, link.wrong,
                                             link.messages, link.first_wrong);
        report_.say("WRONG DATA: " + text);
        if (first_wrong_.empty()) first_wrong_ = text;
      }
      if (!link.is_slow()) continue;
      report_.say(fmt::format(
          "warning: slow link: {}latency {:.2f} us is {:.3g} times, {:.3f} GB/s is {:.3g} of the "
          "median of links {} hosts",
          name, link.latency_us, link.latency_ratio, link.bandwidth_gbs, link.bandwidth_ratio,
          link.is_within_host ? "within" : "between"));
    }
    report_.say(fmt::format("{}: {} links, {} messages, {} wrong", transport, links.size(),
                            messages, wrong));
  }

  /// A row for each rank that sends, a column for each that receives.
  void show_matrix(const std::string& title, const std::vector<Link>& links, double Link::*value,
                   int digits) {
    std::vector<Column> columns = {{"from", "from"}};
    std::vector<Json> rows(hosts_.size());
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      const std::string number = std::to_string(rank);
      columns.push_back({"to " + number, number, digits});
      for (Json& row : rows) row[number] = nullptr;
      rows[rank]["from"] = rank;
    }
    for (const Link& link : links) {
      rows[static_cast<std::size_t>(link.from)][std::to_string(link.to)] = link.*value;
    }
    report_.say("\n" + title + ":");
    report_.begin_table(std::move(columns));
    for (Json& row : rows) report_.add(std::move(row));
  }

  const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  Session& session_;
  const Topology& topology_;
  Report report_ = session_.report();
  std::vector<std::string> hosts_;  ///< by rank
  std::string first_wrong_;
  bool has_checked_ = false;
};

}  // namespace

void add_check(CLI::App& app, int& exit_code, const BackendRegistry& more) {
  auto* const check = app.add_subcommand(
      "check",
      "Sends known data between all pairs of ranks over every transport of the job, compares each "
      "byte, and names slow links: start it with mpiexec or another launcher");
  const auto options = std::make_shared<BenchOptions>();
  options->raw = true;
  options->min_bytes = 1;
  options->max_bytes = std::size_t{1} << 20;
  add_size(*check, "--max", "The largest message", options->max_bytes);
  check->callback([options, more, &exit_code] {
    exit_code = run_session("ronde check", *options, {}, [&](Session& session) {
      if (session.topology().size == 1) {
        throw UsageError(
            "a rank that is alone has no links. Start it as your job starts, such as by mpiexec "
            "-n 4 ronde check");
      }
      Check(session).run(more);
    });
  });
}

}  // namespace ronde::tool

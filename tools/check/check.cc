// SPDX-License-Identifier: Apache-2.0
#include "tools/check/check.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/compose.h"
#include "ronde/error.h"
#include "tools/bench/bench.h"
#include "tools/bench/session/session.h"
#include "tools/check/links.h"

namespace ronde::tool {
namespace {

struct CheckOptions {
  BenchOptions bench;
  double slow_factor = 3.0;
};

template <typename... Numbers>
std::string format(const char* pattern, Numbers... numbers) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), pattern, numbers...);
  return text.data();
}

/// The check of all transports.
class Check {
 public:
  Check(Session& session, double slow_factor)
      : session_(session), topology_(session.topology()), slow_factor_(slow_factor) {}

  /// Throws CommonError if a byte was wrong, or nothing was checked.
  void run(const BackendRegistry& more) {
    if (topology_.size == 1) {
      throw UsageError(
          "a rank that is alone has no links. Start it as your job starts, such as by mpiexec -n 4 "
          "ronde check");
    }
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    hosts_ = session_.peers().all_of(name.data());
    report_.say(session_.description());
    const bool is_crowded = topology_.local_size > topology_.local_cores;
    if (const auto host = session_.first_of(is_crowded ? name.data() : ""); !host.empty()) {
      report_.say("note: ranks outnumber cores on " + host +
                  ": links of ranks that meet on one core seem slow");
    }
    check_transports(more);
    if (report_.rows().empty()) throw CommonError("no transport of these ranks can be checked");
    session_.finish(report_);
    if (!first_wrong_.empty()) throw CommonError("wrong data: " + first_wrong_);
  }

 private:
  void check_transports(const BackendRegistry& more) {
    Config config = load_config_from_environment().config;
    const BackendRegistry backends = compose_built_in(config).backends;
    const auto shares_host = [&](int host) {
      return std::ranges::count(topology_.host_of, host) > 1;
    };
    if (std::ranges::all_of(topology_.host_of, shares_host)) {
      check("shm", backends.at("shm"), true);
    } else {
      report_.say("\nshm: not checked, as there is a host with one rank only");
    }
    if (const auto mpi = backends.find("mpi"); mpi != backends.end()) check("mpi", mpi->second);
    config.fabric = "ucx";
    check("ucx", compose_built_in(config).backends.at("fabric"));
    for (const auto& [name, factory] : more) check(name, factory);
  }

  void check(const std::string& name, const BackendFactory& factory, bool is_within_host = false) {
    MessagePath path = {name, is_within_host};
    try {
      path.backend = &session_.raw().add(factory);
    } catch (const UsageError& error) {  // of every rank
      return report_.say("\n" + name + ": not checked: " + error.what());
    }
    // Odd sizes do not fit the blocks that transports cut data into.
    constexpr std::size_t kStep = 32;
    const std::size_t largest = session_.options().max_bytes;
    for (std::size_t size = 1; size < largest; size = size * kStep + 1) path.sizes.push_back(size);
    path.sizes.push_back(largest);
    tell(path, check_links(session_, path, slow_factor_));
  }

  void tell(const MessagePath& path, const std::vector<Link>& links) {
    const std::size_t bytes = path.sizes.back();
    std::vector<std::string> latencies, bandwidths, lines;
    std::uint64_t messages = 0;
    std::uint64_t wrong = 0;
    for (const Link& link : links) {
      const double gbs = static_cast<double>(bytes) / (1e3 * link.largest_us);
      latencies.push_back(format("%.2f", link.latency_us) + mark(link, link.latency_ratio));
      bandwidths.push_back(format("%.3f", gbs) + mark(link, link.largest_ratio));
      messages += link.messages;
      wrong += link.wrong;
      const std::string name = "rank " + std::to_string(link.from) + " (" + host(link.from) +
                               ") -> rank " + std::to_string(link.to) + " (" + host(link.to) +
                               ") over " + path.name + ": ";
      if (link.wrong > 0) {
        const std::string text = name + std::to_string(link.wrong) + " of " +
                                 std::to_string(link.messages) + " messages; first " +
                                 link.first_wrong;
        lines.push_back("WRONG DATA: " + text);
        if (first_wrong_.empty()) first_wrong_ = text;
      }
      if (link.is_slow(slow_factor_)) {
        lines.push_back("warning: slow link: " + name +
                        format("latency %.2f us is %.3g times, %.3f GB/s is %.3g of the median of "
                               "links %s",
                               link.latency_us, link.latency_ratio, gbs, 1 / link.largest_ratio,
                               link.is_within_host ? "within hosts" : "between hosts"));
      }
      add_row(path, link, gbs);
    }
    tell_matrix("latency in us over " + path.name, links, latencies);
    tell_matrix("GB/s over " + path.name + ", messages of " + size_text(bytes), links, bandwidths);
    for (const std::string& line : lines) report_.say(line);
    report_.say(format("%s: %zu links, %ju messages, %ju wrong", path.name.c_str(), links.size(),
                       messages, wrong));
  }

  void add_row(const MessagePath& path, const Link& link, double gbs) {
    report_.add({{"transport", path.name},
                 {"from", link.from},
                 {"to", link.to},
                 {"from_host", host(link.from)},
                 {"to_host", host(link.to)},
                 {"messages", link.messages},
                 {"wrong", link.wrong},
                 {"first_wrong", link.first_wrong},
                 {"latency_us", link.latency_us},
                 {"latency_ratio", link.latency_ratio},
                 {"bytes", path.sizes.back()},
                 {"bandwidth_gbs", gbs},
                 {"bandwidth_ratio", 1 / link.largest_ratio},
                 {"slow", link.is_slow(slow_factor_)}});
  }

  /// A row for each rank that sends, a column for each that receives. "!": wrong, "*": slow.
  void tell_matrix(const std::string& title, const std::vector<Link>& links,
                   const std::vector<std::string>& cells) {
    report_.say("\n" + title + " (from row to column):");
    std::vector<std::string> rows(hosts_.size() + 1, "        ");
    for (std::size_t rank = 0; rank < hosts_.size(); ++rank) {
      rows[0] += format("%11zu", rank);
      rows[rank + 1] = format("%8zu", rank);
      for (std::size_t to = 0; to < hosts_.size(); ++to) rows[rank + 1] += format("%11s", "-");
    }
    for (std::size_t i = 0; i < links.size(); ++i) {
      const auto column = static_cast<std::size_t>(8 + 11 * links[i].to);
      rows[static_cast<std::size_t>(links[i].from) + 1].replace(column, 11,
                                                                format("%11s", cells[i].c_str()));
    }
    for (const std::string& row : rows) report_.say(row);
  }

  std::string mark(const Link& link, double ratio) const {
    return link.wrong > 0 ? "!" : ratio > slow_factor_ ? "*" : "";
  }

  const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  Session& session_;
  const Topology& topology_;
  const double slow_factor_;
  Report report_ = session_.report();
  std::vector<std::string> hosts_;  ///< by rank
  std::string first_wrong_;
};

}  // namespace

void add_check(CLI::App& app, int& exit_code, const BackendRegistry& more) {
  auto* const check = app.add_subcommand(
      "check",
      "Sends known data between all pairs of ranks over every transport of the job, compares each "
      "byte, and names slow links: start it with mpiexec or another launcher");
  const auto options = std::make_shared<CheckOptions>();
  BenchOptions& bench = options->bench;
  bench.raw = true;
  bench.min_bytes = 1;
  bench.max_bytes = std::size_t{1} << 20;
  add_size(*check, "--max", "The largest message, of which bandwidths are", bench.max_bytes);
  check
      ->add_option("--slow", options->slow_factor,
                   "A link is slow if it takes more than so many times the median of its kind")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  check->add_option("--json", bench.json, "Also write a row for each link to this file");
  check->callback([options, more, &exit_code] {
    exit_code = run_session("ronde check", options->bench, {}, [&](Session& session) {
      Check(session, options->slow_factor).run(more);
    });
  });
}

}  // namespace ronde::tool

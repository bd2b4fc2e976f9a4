// SPDX-License-Identifier: Apache-2.0
#include "tools/run/agent/agent.h"

#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>

#include "ronde/cores.h"
#include "ronde/error.h"
#include "tools/run/agent/rank.h"

// Note [Launcher and agents]
// `ronde run` starts an agent on each host: itself with --agent, directly here and by ssh
// elsewhere. They talk by frames over the agent's standard streams.
//   agent: hello          with its version
//   launcher: prepare     what is to be started
//   agent: prepared       problems and warnings of this host, and a free port
//   launcher: start       once all hosts are prepared
//   agent: output, ended  of each rank
//   launcher: signal, end for all ranks; `end` kills those that are left after a grace time
//   launcher: end starting for ranks that are in init, or come there, as one has failed
// The secret of the job travels in `start`, so that no command line shows it. An agent whose input
// ends (the launcher is gone, or the connection) ends its ranks, and if the agent itself is killed,
// the kernel kills them.

namespace ronde::tool::launch {
namespace {

constexpr std::size_t kMostPending = std::size_t{1} << 20;
constexpr Clock::duration kLong = std::chrono::hours(1);
constexpr Clock::duration kPollPeriod = std::chrono::milliseconds(100);

/// The cores of one rank: consecutive ones.
std::vector<int> cores_of(const Cores& all, std::size_t local_rank, std::size_t ranks) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < 8 * all.mask.size(); ++i) {
    if ((static_cast<unsigned char>(all.mask[i / 8]) >> (i % 8) & 1U) != 0) {
      numbers.push_back(static_cast<int>(i));
    }
  }
  const std::size_t begin = local_rank * numbers.size() / ranks;
  const std::size_t end = std::max((local_rank + 1) * numbers.size() / ranks, begin + 1);
  return {numbers.begin() + static_cast<std::ptrdiff_t>(begin),
          numbers.begin() + static_cast<std::ptrdiff_t>(end)};
}

class Agent {
 public:
  Agent()
      : signals_(open_signals({SIGCHLD, SIGHUP, SIGINT, SIGTERM})), out_(poll_, STDOUT_FILENO) {}

  int run() {
    poll_.add(STDIN_FILENO, POLLIN, [this] { on_input(); });
    poll_.add(signals_.get(), POLLIN, [this] { on_signals(); });
    tell("hello", {{"version", agent_version()}});
    const auto is_busy = [this] {
      return has_input_ || running_ > 0 || (out_.pending() > 0 && !out_.is_broken());
    };
    while (is_busy()) {
      const bool is_full = out_.pending() > kMostPending;
      for (const auto& rank : ranks_) rank->pause(is_full);
      poll_.wait(std::min(kill_at_.value_or(Clock::time_point::max()), look_again()));
      if (kill_at_ && Clock::now() >= *kill_at_) {
        kill_at_.reset();
        signal_all(SIGKILL);
        look_for_ends();
      }
      if (out_.is_broken() && has_input_) lose_launcher();
    }
    return EXIT_SUCCESS;
  }

 private:
  void tell(const char* event, Json what) {
    what["event"] = event;
    out_.send(to_bytes(what));
  }

  void tell_end(int rank, const Ended& end) {
    Json what = end;
    what["rank"] = rank;
    tell("ended", std::move(what));
  }

  void on_input() {
    const auto [goes_on, text] = read_some(STDIN_FILENO);
    orders_.take(text);
    while (const auto frame = orders_.next()) {
      if (!frame->json.is_object()) throw Error("this is no order of a launcher: " + frame->bytes);
      obey(frame->json);
    }
    if (!goes_on) lose_launcher();
  }

  void lose_launcher() {
    if (!std::exchange(has_input_, false)) return;
    poll_.remove(STDIN_FILENO);
    out_.close();
    end_ranks(SIGTERM, grace_s_);
  }

  void obey(const Json& json) {
    const std::string order = json.at("order");
    if (order == "prepare") prepare(json);
    if (order == "start") start(json);
    if (order == "signal") signal_all(json.at("signal"));
    if (order == "end") end_ranks(json.at("signal"), json.at("grace_s"));
    if (order == "end starting") ends_starting_ = json.at("signal");
  }

  void prepare(const Json& order) {
    Findings findings = check_host(order);
    try {
      ports_ = reserve_ports();
    } catch (const Error& error) {
      findings.problems.emplace_back(error.what());
    }
    findings.port = ports_.number;
    tell("prepared", findings);
  }

  void start(const Json& order) {
    grace_s_ = order.at("grace_s");
    Command command;
    command.words = order.at("words").get<std::vector<std::string>>();
    command.folder = order.at("folder");
    for (const auto& [name, value] : order.at("variables").items()) {
      command.variables[name] = value;
    }
    const auto numbers = order.at("ranks").get<std::vector<int>>();
    const Cores cores = usable_cores();
    const std::size_t here = numbers.size();
    if (command.variables["OMP_NUM_THREADS"].empty()) {
      command.variables["OMP_NUM_THREADS"] =
          std::to_string(std::max(1, cores.count() / static_cast<int>(here)));
    }
    for (std::size_t i = 0; i < here; ++i) {
      if (order.at("bind") == "core") command.cores = cores_of(cores, i, here);
      start_rank(command, numbers[i], static_cast<int>(i));
    }
  }

  void start_rank(const Command& command, int number, int local_number) {
    const auto on_output = [this](int rank, int stream, std::string_view bytes) {
      out_.send(to_bytes({{"event", "output"}, {"rank", rank}, {"stream", stream}}, bytes));
    };
    try {
      ranks_.push_back(std::make_unique<Rank>(poll_, command, number, local_number, on_output));
      ++running_;
    } catch (const Error& error) {
      tell_end(number, {.problem = error.what()});
    }
  }

  void on_signals() {
    // Those that are to end it reach the launcher as well, which says what to do; if it is gone,
    // the input ends.
    read_signals(signals_);
    look_for_ends();
  }

  void look_for_ends() {
    for (const auto& rank : ranks_) {
      const std::optional<Ended> end = rank->end(/*waits=*/kill_at_.has_value());
      if (!end) continue;
      --running_;
      tell_end(rank->number(), *end);
    }
  }

  void signal_all(int number) {
    for (const auto& rank : ranks_) rank->signal(number);
  }

  /// Looks at what no event tells of: ranks that come to init, and groups that become empty.
  /// Returns when that is to be done again.
  Clock::time_point look_again() {
    bool lingers = false;
    for (const auto& rank : ranks_) {
      if (ends_starting_) rank->end_if_starting(*ends_starting_);
      lingers = lingers || rank->lingers();
    }
    if (lingers) look_for_ends();
    return Clock::now() + (lingers || ends_starting_ ? kPollPeriod : kLong);
  }

  void end_ranks(int number, double grace_s) {
    // The ends of processes whose parents, shells for instance, go before them are told here.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal_all(number);
    kill_at_ = Clock::now() + seconds_of(grace_s);
  }

  Poll poll_;
  const Fd signals_;
  Outbox out_;
  FrameReader orders_;
  ReservedPorts ports_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::size_t running_ = 0;
  double grace_s_ = 0;
  std::optional<Clock::time_point> kill_at_;
  std::optional<int> ends_starting_;  ///< the signal
  bool has_input_ = true;
};

}  // namespace

int run_agent() {
  return Agent().run();
}

}  // namespace ronde::tool::launch

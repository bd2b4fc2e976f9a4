// SPDX-License-Identifier: Apache-2.0
#include "tools/run/agent/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "observe/live/run_board.h"
#include "ronde/cores.h"
#include "ronde/error.h"
#include "tools/run/base/process.h"

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
// and in an elastic job, for one rank (Note [Members of an elastic job]):
//   agent: said            what the rank has written to its end of a socket
//   agent: stopped         by a signal such as SIGSTOP, or resumed
//   launcher: tell         what is to be written to it
//   launcher: kill, replace
// The secret of the job travels in `start`, so that no command line shows it. An agent whose input
// ends (the launcher is gone, or the connection) ends its ranks, and if the agent itself is killed,
// the kernel kills them.

namespace ronde::tool::launch {
namespace {

constexpr std::size_t kMostPendingFrames = std::size_t{1} << 20;
constexpr Clock::duration kLong = std::chrono::hours(1);
constexpr Clock::duration kEndsPollPeriod = std::chrono::milliseconds(100);

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

/// A process that is a rank, the memory in which it writes what it does, and its output.
class Rank {
 public:
  using OnOutput = std::function<void(int rank, int stream, std::string_view bytes)>;
  using OnMessage = std::function<void(int rank, const Json& message)>;

  /// Starts the process; adds RANK, LOCAL_RANK and the board to the variables of `command`, and of
  /// an elastic job, where `on_message` is not empty, its channel. `poll` outlives this. Throws
  /// Error.
  Rank(Poll& poll, Command command, int number, int local_number, OnOutput on_output,
       OnMessage on_message)
      : poll_(poll),
        number_(number),
        on_output_(std::move(on_output)),
        on_message_(std::move(on_message)) {
    memory_ = Fd(memfd_create("ronde-run", MFD_CLOEXEC));
    if (!memory_ || ftruncate(memory_.get(), sizeof(RunBoard)) != 0) fail("memfd_create");
    void* const address =
        mmap(nullptr, sizeof(RunBoard), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
    if (address == MAP_FAILED) fail("mmap");
    board_ = new (address) RunBoard();
    command.variables["RANK"] = std::to_string(number);
    command.variables["LOCAL_RANK"] = std::to_string(local_number);
    command.variables[RunBoard::kVariable] =
        "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(memory_.get());
    command.dies_with_parent = true;
    const Fd channel = on_message_ ? open_channel(command) : Fd();
    process_ = spawn(command);
    process_.in.reset();
    poll_.add(process_.out.get(), POLLIN, [this] { read_output(STDOUT_FILENO); });
    poll_.add(process_.err.get(), POLLIN, [this] { read_output(STDERR_FILENO); });
  }
  /// Kills what is left of its process group.
  ~Rank() {
    if (process_.out) poll_.remove(process_.out.get());
    if (process_.err) poll_.remove(process_.err.get());
    close_channel();
    if (process_.pid > 0) kill_and_reap(process_.pid);
    if (board_ != nullptr) munmap(board_, sizeof(RunBoard));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void signal(int number) const noexcept {
    if (process_.pid <= 0) return;
    signal_group(process_.pid, number);
    signal_group(process_.pid, SIGCONT);  // one that is stopped hears it, too
  }
  /// Stops reading its output, or resumes.
  void pause(bool paused) {
    poll_.pause(process_.out.get(), paused);
    poll_.pause(process_.err.get(), paused);
  }
  int number() const noexcept { return number_; }
  /// Sends the signal, at most once, if the rank is in init.
  void end_if_starting(int number) noexcept {
    if (board_->state == RunBoard::kStarting && !std::exchange(is_told_, true)) signal(number);
  }
  /// Writes a message to the channel of a process of an elastic job.
  void tell(const Json& message) {
    if (orders_) orders_->send(message.dump() + "\n");
  }
  bool lives() const noexcept { return process_.pid > 0; }
  /// Whether its leader has ended and others of its process group have not.
  bool lingers() const noexcept { return process_.pid > 0 && status_.has_value(); }
  /// Returns whether a signal has stopped it since the last call, or false if it has resumed.
  std::optional<bool> stop_change() const noexcept {
    return process_.pid > 0 && !status_ ? launch::stop_change(process_.pid) : std::nullopt;
  }
  /// Returns how it has ended, once. `waits`: not before its whole process group has ended, as a
  /// shell may end before the program that it has started. Otherwise kills what is left of the
  /// group.
  std::optional<Ended> end(bool waits) {
    if (process_.pid <= 0) return std::nullopt;
    if (!status_) {
      if (!has_ended(process_.pid)) return std::nullopt;
      status_ = waits ? reap(process_.pid) : kill_and_reap(process_.pid);
    }
    if (waits && has_members(process_.pid)) return std::nullopt;
    process_.pid = -1;
    while (channel_ && read_channel()) {  // it may have said that it leaves
    }
    close_channel();
    const int status = *status_;
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      const Fd& fd = stream == STDOUT_FILENO ? process_.out : process_.err;
      // A pipe holds some of them; what a daemon of the program writes is not awaited.
      for (int i = 0; i < 64 && fd && read_output(stream); ++i) {
      }
    }
    return Ended{.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                 .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                 .state = board_->state,
                 .steps = board_->steps,
                 .checkpoint = board_->checkpoint,
                 .failed_rank = board_->failed_rank};
  }

 private:
  /// Returns whether there was output to read.
  bool read_output(int stream) {
    Fd& fd = stream == STDOUT_FILENO ? process_.out : process_.err;
    const auto [goes_on, text] = read_some(fd.get());
    if (!text.empty()) on_output_(number_, stream, text);
    if (goes_on) return !text.empty();
    poll_.remove(fd.get());
    fd.reset();
    return false;
  }

  /// Returns the end of the process, which need not be open here once it has started.
  Fd open_channel(Command& command) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail("socketpair");
    channel_ = Fd(ends[0]);
    Fd theirs(ends[1]);
    fcntl(channel_.get(), F_SETFL, O_NONBLOCK);
    command.inherited = theirs.get();
    command.variables[RunBoard::kChannelVariable] = std::to_string(theirs.get());
    to_channel_ = Fd(fcntl(channel_.get(), F_DUPFD_CLOEXEC, 0));  // a Poll has a descriptor once
    if (!to_channel_) fail("fcntl");
    orders_.emplace(poll_, to_channel_.get());
    poll_.add(channel_.get(), POLLIN, [this] { read_channel(); });
    return theirs;
  }
  void close_channel() {
    if (!channel_) return;
    orders_.reset();
    poll_.remove(channel_.get());
    channel_.reset();
    to_channel_.reset();
  }
  /// Returns whether there was something to read.
  bool read_channel() {
    const auto [goes_on, text] = read_some(channel_.get());
    messages_.take(text);
    while (const auto frame = messages_.next()) {
      if (frame->json.is_object()) on_message_(number_, frame->json);
    }
    if (!goes_on) close_channel();
    return !text.empty();
  }

  Poll& poll_;
  const int number_;
  const OnOutput on_output_;
  const OnMessage on_message_;
  Fd channel_, to_channel_;  ///< of an elastic job: a socket to the process
  std::optional<Outbox> orders_;
  FrameReader messages_;
  RunBoard* board_ = nullptr;
  Fd memory_;
  Process process_;
  bool is_told_ = false;
  std::optional<int> status_;  ///< of a leader that has gone before the others of its group
};

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
      const bool is_full = out_.pending() > kMostPendingFrames;
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
    if (order == "replace") start_rank(json.at("rank"));
    if (order != "tell" && order != "kill") return;
    for (const auto& rank : ranks_) {
      if (rank->number() != json.at("rank") || !rank->lives()) continue;
      if (order == "tell") rank->tell(json.at("message"));
      if (order == "kill") rank->signal(SIGKILL);
    }
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
    Command& command = command_;
    command.words = order.at("words").get<std::vector<std::string>>();
    command.folder = order.at("folder");
    for (const auto& [name, value] : order.at("variables").items()) {
      command.variables[name] = value;
    }
    numbers_ = order.at("ranks").get<std::vector<int>>();
    is_elastic_ = order.at("elastic");
    cores_ = usable_cores();
    binds_ = order.at("bind") == "core";
    const std::size_t here = numbers_.size();
    if (command.variables["OMP_NUM_THREADS"].empty()) {
      command.variables["OMP_NUM_THREADS"] =
          std::to_string(std::max(1, cores_.count() / static_cast<int>(here)));
    }
    for (const int number : numbers_) start_rank(number);
  }

  void start_rank(int number) {
    // One process that has ended is kept for each rank, as what a daemon of it writes is passed on.
    std::erase_if(ranks_, [number](const auto& rank) { return rank->number() == number; });
    const auto place = std::ranges::find(numbers_, number) - numbers_.begin();
    if (binds_) {
      command_.cores = cores_of(cores_, static_cast<std::size_t>(place), numbers_.size());
    }
    const auto on_output = [this](int rank, int stream, std::string_view bytes) {
      out_.send(to_bytes({{"event", "output"}, {"rank", rank}, {"stream", stream}}, bytes));
    };
    try {
      Rank::OnMessage on_message;
      if (is_elastic_) {
        on_message = [this](int rank, const Json& message) {
          tell("said", {{"rank", rank}, {"message", message}});
        };
      }
      ranks_.push_back(std::make_unique<Rank>(poll_, command_, number, static_cast<int>(place),
                                              on_output, std::move(on_message)));
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
      if (const std::optional<bool> is_stopped = rank->stop_change()) {
        tell("stopped", {{"rank", rank->number()}, {"is_stopped", *is_stopped}});
      }
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
    return Clock::now() + (lingers || ends_starting_ ? kEndsPollPeriod : kLong);
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
  Command command_;           ///< of the ranks
  std::vector<int> numbers_;  ///< of the ranks here
  Cores cores_;
  bool binds_ = false;
  bool is_elastic_ = false;
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

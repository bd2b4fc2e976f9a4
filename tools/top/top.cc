// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "observe/live/top_socket.h"
#include "tools/commands.h"
#include "tools/top/jobs.h"

namespace ronde::tool {
namespace {

// ECMA-48 and xterm.
constexpr std::string_view kOpen = "\x1b[?1049h\x1b[?25l";   // another page, without the cursor
constexpr std::string_view kClose = "\x1b[?25h\x1b[?1049l";  // what was there before
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kEndOfLine = "\x1b[K\r\n";
constexpr std::string_view kClearBelow = "\x1b[J";

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

/// Shows one page after another on the terminal, and restores it in the destructor. SIGINT, SIGTERM
/// and SIGHUP end wait(), so that the destructor runs.
///
/// Thread-safety: none.
class Screen {
 public:
  Screen() : has_keys_(tcgetattr(STDIN_FILENO, &before_) == 0) {
    const sigset_t signals = ending_signals();
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC);
    if (has_keys_) {
      termios keys = before_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // a stopped process would leave the terminal as it is
      tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    std::cout << kOpen << std::flush;
  }

  ~Screen() {
    std::cout << kClose << std::flush;
    if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    close(signals_);
  }

  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Shows `text`, cut to the size of the terminal.
  void show(const std::string& text) {
    winsize size{};
    const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1;
    const std::size_t rows = is_known ? size.ws_row : 24;
    const std::size_t columns = is_known ? size.ws_col : 80;
    std::cout << kHome;
    std::istringstream lines(text);
    std::string line;
    for (std::size_t row = 1; row < rows && std::getline(lines, line); ++row) {
      std::cout << line.substr(0, columns) << kEndOfLine;
    }
    std::cout << kClearBelow << std::flush;
  }

  /// Waits for `time`. Returns false once the user leaves, by the key q or a signal.
  bool wait(std::chrono::milliseconds time) {
    std::array<pollfd, 2> sources = {
        {{signals_, POLLIN, 0}, {has_keys_ ? STDIN_FILENO : -1, POLLIN, 0}}};
    if (poll(sources.data(), sources.size(), static_cast<int>(time.count())) <= 0) return true;
    if (sources[0].revents != 0) return false;
    char key = 'q';  // a terminal that is gone
    return read(STDIN_FILENO, &key, 1) == 1 && key != 'q';
  }

 private:
  int signals_ = -1;
  bool has_keys_ = false;
  termios before_{};
};

constexpr std::chrono::seconds kPeriod{1};

struct Options {
  int pid = 0;
  bool once = false;
  bool json = false;
};

/// Names the processes that do not answer.
std::string silence(const std::vector<top::Answer>& answers, int pid) {
  std::string text;
  for (const top::Answer& answer : answers) {
    if (!answer.json.is_null() || (pid != 0 && answer.pid != pid)) continue;
    text += "process " + std::to_string(answer.pid) +
            " does not answer: it is stopped, or its Ronde has another version\n";
  }
  return text;
}

[[noreturn]] void fail_without_job(int pid) {
  throw Error("no running job of this user on this host " +
              (pid == 0 ? std::string() : "with process " + std::to_string(pid) + " ") +
              "has RONDE_TOP=1");
}

void print_once(const Options& options, const std::string& folder) {
  top::Jobs jobs;
  const std::vector<top::Answer> answers = top::ask_ranks(folder);
  const auto found = jobs.take(answers, options.pid);
  std::cerr << silence(answers, options.pid);
  if (found.empty()) fail_without_job(options.pid);
  std::cout << (options.json ? found.dump(2) + "\n" : top::text_of(found));
}

void watch(const Options& options, const std::string& folder) {
  top::Jobs jobs;
  std::optional<Screen> screen;
  while (true) {
    const std::vector<top::Answer> answers = top::ask_ranks(folder);
    const auto found = jobs.take(answers, options.pid);
    const std::string silent = silence(answers, options.pid);
    if (found.empty() && silent.empty()) {
      if (!screen) fail_without_job(options.pid);
      screen.reset();
      std::cout << "the job has ended\n";
      return;
    }
    if (!screen) screen.emplace();
    screen->show(top::text_of(found) + silent + "\nq: leave\n");
    if (!screen->wait(kPeriod)) return;
  }
}

int run(const Options& options) {
  return exit_code_of("ronde top", [&] {
    const bool is_live = !options.once && !options.json && isatty(STDOUT_FILENO) == 1;
    (is_live ? watch : print_once)(options, top_folder());
    return EXIT_SUCCESS;
  });
}

}  // namespace

void add_top(CLI::App& app, int& exit_code) {
  auto* const command =
      app.add_subcommand("top", "Watch this user's jobs on this host that have RONDE_TOP=1");
  const auto options = std::make_shared<Options>();
  command->add_option("pid", options->pid, "Only the job that has this process");
  command->add_flag("--once", options->once, "Print one page, as where the output is no terminal");
  command->add_flag("--json", options->json, "Print it as JSON");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace ronde::tool

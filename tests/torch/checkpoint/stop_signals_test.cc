// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

#include "tests/torch/support.h"
#include "torch_ext/src/checkpoint/stop_signals.h"
#include "torch_ext/src/common/agreement.h"

namespace ronde_test::stop_signals_test {
namespace {

using ronde::detail::StopSignals;

std::atomic<int> first_calls, second_calls, sender;
struct sigaction before_second = {};

void first_handler(int /*signal*/) {
  ++first_calls;
  errno = EDOM;
}

/// Ends the process with the second signal.
void exiting_handler(int /*signal*/) {
  if (++first_calls == 2) ::_exit(2);
}

void handler_with_info(int /*signal*/, siginfo_t* info, void* context) {
  ++first_calls;
  sender = context != nullptr ? info->si_pid : 0;
}

/// Calls the handler that it replaced, as a well-behaved one does.
void chaining_handler(int signal) {
  ++second_calls;
  before_second.sa_handler(signal);
}

struct sigaction plain(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  return action;
}

struct sigaction with_info() {
  struct sigaction action = {};
  action.sa_sigaction = handler_with_info;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaddset(&action.sa_mask, SIGUSR1);
  return action;
}

struct sigaction present() {
  struct sigaction action = {};
  REQUIRE(::sigaction(SIGUSR2, nullptr, &action) == 0);
  return action;
}

/// SIGUSR2 with this action, and the counters at zero, until it ends.
class Program {
 public:
  explicit Program(const struct sigaction& action) {
    first_calls = second_calls = sender = 0;
    REQUIRE(::sigaction(SIGUSR2, &action, &former_) == 0);
  }
  ~Program() { ::sigaction(SIGUSR2, &former_, nullptr); }

 private:
  struct sigaction former_ = {};
};

std::unique_ptr<StopSignals> catching() {
  return std::make_unique<StopSignals>(std::vector<int>{SIGUSR2},
                                       ronde::detail::numbered_name("stop", ronde::kGlobalSet),
                                       ronde::kGlobalSet);
}

/// Whether the process was asked to stop, asked on all ranks.
bool is_asked(StopSignals& signals) {
  static_cast<void>(signals.agreed());
  return signals.agreed();
}

TEST_CASE("a stop signal asks Checkpoints to stop, and runs the program's own handler") {
  for (const struct sigaction& action :
       {plain(SIG_IGN), plain(SIG_DFL), plain(first_handler), with_info()}) {
    const bool has_info = action.sa_sigaction == handler_with_info;
    const bool is_handled = has_info || action.sa_handler == first_handler;
    for (const std::size_t ends_first : {0U, 1U}) {
      const Program program(action);
      {
        std::unique_ptr<StopSignals> both[] = {catching(), catching()};
        StopSignals& stays = *both[1 - ends_first];
        const struct sigaction installed = present();
        CHECK(sigismember(&installed.sa_mask, SIGUSR1) == (has_info ? 1 : 0));
        CHECK_FALSE(is_asked(stays));
        errno = 0;
        ::raise(SIGUSR2);
        CHECK(errno == 0);
        both[ends_first].reset();
        ::raise(SIGUSR2);  // from a launcher as well
        CHECK(first_calls == (is_handled ? 2 : 0));
        CHECK(sender == (has_info ? ::getpid() : 0));
        CHECK(is_asked(stays));
      }
      CHECK(present().sa_handler == action.sa_handler);  // of either kind: they share memory
      CHECK_FALSE(is_asked(*catching()));
    }
  }
}

TEST_CASE("a handler that the program installs later stays, and may call what it replaced") {
  const Program program(plain(first_handler));
  auto signals = catching();
  const struct sigaction later = plain(chaining_handler);
  REQUIRE(::sigaction(SIGUSR2, &later, &before_second) == 0);
  ::raise(SIGUSR2);
  CHECK((first_calls == 1 && second_calls == 1));
  CHECK(is_asked(*signals));
  signals.reset();
  CHECK(present().sa_handler == chaining_handler);
  ::raise(SIGUSR2);
  CHECK((first_calls == 2 && second_calls == 2));
  // No Checkpoint lived: the signal was the program's alone.
  signals = catching();
  CHECK_FALSE(is_asked(*signals));
  // The new handler calls the program's, which calls it again.
  ::raise(SIGUSR2);
  CHECK(second_calls == 3);
  CHECK(is_asked(*signals));
  signals.reset();
  CHECK(present().sa_handler == chaining_handler);
  ::raise(SIGUSR2);
  CHECK(second_calls == 4);
}

TEST_CASE("a signal that comes again a second later ends the process after its handler", "[n1]") {
  const bool exits = GENERATE(true, false);
  const Program program(plain(exits ? exiting_handler : first_handler));
  const int status = status_of_child([] {
    const StopSignals signals({SIGUSR2}, "stop", ronde::kGlobalSet);
    ::raise(SIGUSR2);
    std::this_thread::sleep_for(std::chrono::milliseconds(1050));
    ::raise(SIGUSR2);
    return 0;
  });
  CHECK((exits ? WIFEXITED(status) && WEXITSTATUS(status) == 2
               : WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR2));
}

}  // namespace
}  // namespace ronde_test::stop_signals_test

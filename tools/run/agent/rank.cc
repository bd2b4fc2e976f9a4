// SPDX-License-Identifier: Apache-2.0
#include "tools/run/agent/rank.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <new>
#include <utility>

#include "observe/live/run_board.h"

namespace ronde::tool::launch {

Rank::Rank(Poll& poll, Command command, int number, int local_number, OnOutput on_output)
    : poll_(poll), number_(number), on_output_(std::move(on_output)) {
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
  process_ = spawn(command);
  process_.in.reset();
  poll_.add(process_.out.get(), POLLIN, [this] { read_output(STDOUT_FILENO); });
  poll_.add(process_.err.get(), POLLIN, [this] { read_output(STDERR_FILENO); });
}

Rank::~Rank() {
  if (process_.out) poll_.remove(process_.out.get());
  if (process_.err) poll_.remove(process_.err.get());
  if (process_.pid > 0) kill_and_reap(process_.pid);
  if (board_ != nullptr) munmap(board_, sizeof(RunBoard));
}

void Rank::signal(int number) const noexcept {
  if (process_.pid <= 0) return;
  signal_group(process_.pid, number);
  signal_group(process_.pid, SIGCONT);  // one that is stopped hears it, too
}

void Rank::pause(bool paused) {
  poll_.pause(process_.out.get(), paused);
  poll_.pause(process_.err.get(), paused);
}

bool Rank::read_output(int stream) {
  Fd& fd = stream == STDOUT_FILENO ? process_.out : process_.err;
  const auto [goes_on, text] = read_some(fd.get());
  if (!text.empty()) on_output_(number_, stream, text);
  if (goes_on) return !text.empty();
  poll_.remove(fd.get());
  fd.reset();
  return false;
}

void Rank::end_if_starting(int number) noexcept {
  if (board_->state == RunBoard::kStarting && !std::exchange(is_told_, true)) signal(number);
}

std::optional<Ended> Rank::end(bool waits) {
  if (process_.pid <= 0) return std::nullopt;
  if (!status_) {
    if (!has_ended(process_.pid)) return std::nullopt;
    status_ = waits ? reap(process_.pid) : kill_and_reap(process_.pid);
  }
  if (waits && has_members(process_.pid)) return std::nullopt;
  process_.pid = -1;
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

}  // namespace ronde::tool::launch

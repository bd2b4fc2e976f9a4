// SPDX-License-Identifier: Apache-2.0
#include "observe/live/run_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ronde/error.h"

namespace ronde {

RunReport::RunReport(const EnvironmentLookup& variables) {
  const std::string path = variables(RunBoard::kVariable).value_or("");
  if (path.empty()) return;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  const bool fits =
      fd >= 0 && fstat(fd, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(RunBoard));
  void* const address =
      fits ? mmap(nullptr, sizeof(RunBoard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
           : MAP_FAILED;
  const std::string error = fd < 0 || fits ? std::strerror(errno) : "it is too short";
  if (fd >= 0) close(fd);
  if (address != MAP_FAILED) board_ = static_cast<RunBoard*>(address);
  if (board_ != nullptr && board_->layout == RunBoard::kLayout) return;
  problem_ = std::string(RunBoard::kVariable) + "=" + path + ": " +
             (board_ != nullptr ? "it has another layout" : error) +
             ". `ronde run` does not hear of this rank's steps and shutdown";
  if (board_ != nullptr) munmap(address, sizeof(RunBoard));
  board_ = nullptr;
}

RunReport::~RunReport() {
  if (board_ != nullptr) munmap(board_, sizeof(RunBoard));
}

void RunReport::note(RunBoard::State state) noexcept {
  if (board_ != nullptr) board_->state = state;
}

void RunReport::note_end(bool has_shut_down, const std::exception_ptr& failure) noexcept {
  if (board_ == nullptr) return;
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const GroupError& error) {
    board_->failed_rank = error.failed_rank();
  } catch (...) {  // names no rank
  }
  board_->state = has_shut_down && !failure ? RunBoard::kShutDown : RunBoard::kLeft;
}

void RunReport::note_checkpoint(std::int64_t step) noexcept {
  if (board_ != nullptr) board_->checkpoint = step;
}

EventCallback RunReport::counting_steps(EventCallback next) {
  if (board_ == nullptr) return next;
  return [this, next = std::move(next)](const EventRecord& event, std::string_view text) {
    if (event.kind == EventKind::StepEnded) {
      board_->steps.store(static_cast<std::int64_t>(event.operation), std::memory_order_relaxed);
    }
    if (next) next(event, text);
  };
}

}  // namespace ronde

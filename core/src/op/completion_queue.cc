// SPDX-License-Identifier: Apache-2.0
#include "ronde/completion_queue.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <mutex>

#include "core/src/base/caller.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde {

/// What the queue shares with works that are not done.
class CompletionQueue::State {
 public:
  State() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor_) return;
    throw Error("a ronde::CompletionQueue cannot have a descriptor: eventfd(): " +
                errno_text(errno));
  }

  int descriptor() const noexcept { return descriptor_.get(); }

  /// Throws UsageError if `function` is called in a child of fork(): Note [After fork].
  void expect_own_process(const char* function) const {
    if (fork_depth() != fork_depth_) throw error_after_fork(function);
  }

  /// Moves the token of the list here, if there is one.
  void put(std::list<std::uint64_t>& token) noexcept {
    const std::lock_guard lock(mutex_);
    const bool was_empty = tokens_.empty();
    tokens_.splice(tokens_.end(), token);
    if (was_empty && !tokens_.empty()) ::eventfd_write(descriptor_.get(), 1);
  }

  std::optional<std::uint64_t> take() noexcept {
    const std::lock_guard lock(mutex_);
    if (tokens_.empty()) return std::nullopt;
    const std::uint64_t token = tokens_.front();
    tokens_.pop_front();
    eventfd_t count = 0;
    if (tokens_.empty()) ::eventfd_read(descriptor_.get(), &count);
    return token;
  }

 private:
  const UniqueFd descriptor_;
  const int fork_depth_ = fork_depth();
  std::mutex mutex_;
  std::list<std::uint64_t> tokens_;  ///< guarded by mutex_, and so is whether descriptor_ is set
};

CompletionQueue::CompletionQueue() : state_(std::make_shared<State>()) {}

CompletionQueue::~CompletionQueue() = default;

void CompletionQueue::add(const Work& work, std::uint64_t token) {
  state_->expect_own_process("CompletionQueue::add()");
  work.on_done(notifier(token));
}

std::function<void()> CompletionQueue::notifier(std::uint64_t token) {
  // The memory of the token is taken here, as none can be asked for where a work ends.
  auto owned = std::make_shared<std::list<std::uint64_t>>(1, token);
  return [state = std::weak_ptr(state_), owned = std::move(owned)] {
    if (const auto queue = state.lock()) queue->put(*owned);
  };
}

std::optional<std::uint64_t> CompletionQueue::next(std::chrono::nanoseconds duration) {
  using Clock = MonotonicClock;
  state_->expect_own_process("CompletionQueue::next()");
  const TimePoint begin = Clock::now();
  const bool is_for_ever = duration > TimePoint::max() - begin;
  for (;;) {
    const auto token = state_->take();
    if (token || duration <= std::chrono::nanoseconds::zero()) return token;
    const std::chrono::nanoseconds left =
        std::max(duration - (Clock::now() - begin), std::chrono::nanoseconds::zero());
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
    pollfd readable{.fd = state_->descriptor(), .events = POLLIN, .revents = 0};
    const int ready = ::ppoll(&readable, 1, is_for_ever ? nullptr : &limit, nullptr);
    if (ready <= 0) return ready == 0 ? state_->take() : std::nullopt;
  }
}

int CompletionQueue::descriptor() const noexcept {
  return state_->descriptor();
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/shared_board.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "backends/shm/in_step.h"
#include "backends/shm/shared_memory.h"

namespace ronde {
namespace {

/// ThreadSanitizer knows no fences. A read-modify-write is one to the processors that it runs on.
void full_fence() noexcept {
#ifdef __SANITIZE_THREAD__
  static std::atomic<int> fence{0};
  fence.fetch_add(1);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// For arrival words: the most buckets of a frozen schedule, and one.
constexpr std::size_t kWords = 1024;

class SharedBoard final : public Board {
 public:
  SharedBoard(const Topology& topology, shm::SharedMemory memory, std::vector<net::UniqueFd> bells)
      : rank_(static_cast<std::size_t>(topology.local_rank)),
        memory_(std::move(memory)),
        bells_(std::move(bells)) {
    // Zero bytes are words of zero, of whichever rank comes first.
    auto* const words = reinterpret_cast<Word*>(memory_.bytes().data());
    words_ = {words, kWords};
    asleep_ = {words + kWords, bells_.size()};
  }

  static std::size_t bytes_for(int ranks) {
    return (kWords + static_cast<std::size_t>(ranks)) * sizeof(Word);
  }

  std::span<Word> words() noexcept override { return words_; }

  // Note [Asleep, then look]: of "say asleep, then look at the change" and "change, then look who
  // sleeps" at least one sees the other, as a full fence stands in the middle of both.
  void set_asleep(Sleep sleep) noexcept override {
    asleep_[rank_].value.store(static_cast<std::uint64_t>(sleep), std::memory_order_relaxed);
    full_fence();
  }

  void ring(Whom whom) noexcept override {
    full_fence();
    for (std::size_t other = 0; other < asleep_.size(); ++other) {
      std::atomic<std::uint64_t>& asleep = asleep_[other].value;
      const auto sleep = static_cast<Sleep>(asleep.load(std::memory_order_relaxed));
      if (other == rank_ || !is_meant(sleep, whom)) continue;
      if (asleep.exchange(0, std::memory_order_relaxed) != 0) wake(bells_[other]);
    }
  }

 private:
  static void wake(const net::UniqueFd& bell) noexcept {
    const std::uint64_t one = 1;
    // Fails only if the counter is full: then a wake is pending anyway.
    [[maybe_unused]] const ssize_t written = ::write(bell.get(), &one, sizeof one);
  }

  const std::size_t rank_;
  const shm::SharedMemory memory_;
  const std::vector<net::UniqueFd> bells_;  ///< by local rank
  std::span<Word> words_;
  std::span<Word> asleep_;  ///< by local rank
};

}  // namespace

MakeBoard shm_board_factory() {
  return [](BoardContext& context) -> std::unique_ptr<Board> {
    if (context.wake_fd < 0) return nullptr;
    const shm::Meeting meeting{*context.topology, context.exchange};
    try {
      shm::SharedMemory memory =
          shm::share_memory(meeting, SharedBoard::bytes_for(context.topology->local_size));
      std::vector<net::UniqueFd> bells = shm::share_descriptors(meeting, context.wake_fd);
      return std::make_unique<SharedBoard>(*context.topology, std::move(memory), std::move(bells));
    } catch (const shm::StepError& error) {
      if (context.warn) {
        context.warn(std::string(error.what()) +
                     ". So every step is negotiated by messages, which is slower");
      }
      return nullptr;
    }
  };
}

}  // namespace ronde

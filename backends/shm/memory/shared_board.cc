// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "backends/shm/memory/shared_memory.h"
#include "backends/shm/shm.h"

namespace ronde {
namespace {

/// Under ThreadSanitizer, which does not model fences, a read-modify-write takes the place of one;
/// on the processors that it supports it is a full fence.
void full_fence() noexcept {
#ifdef __SANITIZE_THREAD__
  static std::atomic<int> fence{0};
  fence.fetch_add(1);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Number of arrival words: one more than a frozen schedule may have buckets.
constexpr std::size_t kWords = 1024;

class SharedBoard final : public Board {
 public:
  SharedBoard(const Topology& topology, shm::SharedMemory memory, std::vector<UniqueFd> bells)
      : rank_(static_cast<std::size_t>(topology.local_rank)),
        memory_(std::move(memory)),
        bells_(std::move(bells)) {
    // The memory is zeroed, which is a valid state of all words.
    auto* const words = reinterpret_cast<Word*>(memory_.bytes().data());
    words_ = {words, kWords};
    asleep_ = {reinterpret_cast<std::atomic<Sleep>*>(words + kWords), bells_.size()};
  }

  static std::size_t bytes_for(int ranks) {
    return kWords * sizeof(Word) + static_cast<std::size_t>(ranks);
  }

  std::span<Word> words() noexcept override { return words_; }

  // Note [Asleep, then look]
  // A sleeper stores that it is asleep, and then loads the change that it waits for. A notifier
  // stores the change, and then loads who sleeps. Both have a full fence in between, so at least
  // one of them sees the store of the other.
  void set_asleep(Sleep sleep) noexcept override {
    std::atomic<Sleep>& mine = asleep_[rank_];
    // A peer that does not see yet that this rank is awake merely wakes it in vain. All ranks read
    // the line, so it is written only where that changes something.
    if (sleep == Sleep::None && mine.load(std::memory_order_relaxed) == sleep) return;
    mine.store(sleep, std::memory_order_relaxed);
    if (sleep != Sleep::None) full_fence();
  }

  bool has_sleepers(Whom whom) noexcept override {
    full_fence();
    return next_sleeper(0, whom) < asleep_.size();
  }

  void notify(Whom whom) noexcept override {
    full_fence();
    for (std::size_t other = next_sleeper(0, whom); other < asleep_.size();
         other = next_sleeper(other + 1, whom)) {
      if (asleep_[other].exchange(Sleep::None, std::memory_order_relaxed) != Sleep::None) {
        wake(bells_[other]);
      }
    }
  }

 private:
  /// The first rank from `rank` on that sleeps and is addressed by `whom`, or the number of ranks.
  std::size_t next_sleeper(std::size_t rank, Whom whom) const noexcept {
    while (rank < asleep_.size() &&
           (rank == rank_ || !is_meant(asleep_[rank].load(std::memory_order_relaxed), whom))) {
      ++rank;
    }
    return rank;
  }

  static void wake(const UniqueFd& bell) noexcept {
    const std::uint64_t one = 1;
    // The write fails only if the counter is full; a wake is pending then.
    [[maybe_unused]] const ssize_t written = ::write(bell.get(), &one, sizeof one);
  }

  const std::size_t rank_;
  const shm::SharedMemory memory_;
  const std::vector<UniqueFd> bells_;  ///< by local rank
  std::span<Word> words_;
  /// By local rank, one byte each, as notify() reads all of them after every chunk: a line holds
  /// the bytes of 64 ranks.
  std::span<std::atomic<Sleep>> asleep_;
};

}  // namespace

MakeBoard shm_board_factory() {
  return [](BoardContext& context) -> std::unique_ptr<Board> {
    if (context.wake_fd < 0) return nullptr;
    const shm::Meeting meeting{*context.topology, context.exchange};
    try {
      shm::SharedMemory memory =
          shm::share_memory(meeting, SharedBoard::bytes_for(context.topology->local_size));
      std::vector<UniqueFd> bells = shm::share_descriptors(meeting, context.wake_fd);
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

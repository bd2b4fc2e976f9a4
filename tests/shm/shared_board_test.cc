// SPDX-License-Identifier: Apache-2.0
// Note [Asleep, then look] as it is shipped. ThreadSanitizer sees no fences and runs other code, so
// two threads on two cores run the shipped instructions against each other, and every round is
// looked through for a lost wake. Without either of the two fences, x86 loses some in every run.
#include "backends/shm/memory/shared_board.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "core/src/base/system.h"
#include "tests/shm/group.h"

namespace ronde::test {
namespace {

constexpr std::uint64_t kRounds = 200'000;

/// Where two threads meet, so that what follows runs on both at the same time.
class Meet {
 public:
  void arrive(std::uint64_t round) {
    arrived_.fetch_add(1);
    for (int looks = 0; arrived_.load() < 2 * round; ++looks) {
      if (looks > kPatience) std::this_thread::yield();
    }
  }

 private:
  static constexpr int kPatience = 100'000;  // the other one may be without its core for a while
  alignas(128) std::atomic<std::uint64_t> arrived_{0};
};

cpu_set_t allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  REQUIRE(::sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  return allowed;
}

/// Two threads on one core would take turns and never meet.
void stay_on_own_core(int rank, const cpu_set_t& allowed) {
  int number = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || number++ != rank) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    ::sched_setaffinity(0, sizeof own, &own);
  }
}

/// Takes the bell's wakes away.
bool has_rung(const UniqueFd& bell) {
  std::uint64_t count = 0;
  return ::read(bell.get(), &count, sizeof count) == sizeof count;
}

/// Rounds differ in who is the first, and by how much.
void delay(std::uint64_t turns) {
  for (volatile std::uint64_t left = turns; left > 0;) left = left - 1;
}

/// Rank 0 says that it sleeps and looks; rank 1 changes what rank 0 looks at and notifies. In each
/// round rank 0 has to see the change, or to be rung. The wait itself is left out: whether it would
/// end is known once both are through.
void sleep_and_notify(Board::Sleep sleep, Board::Whom whom) {
  std::atomic<std::uint64_t> lost{0};
  std::atomic<std::uint64_t> seen{0};
  Meet prepare, begin, end;
  const cpu_set_t allowed = allowed_cores();
  if (CPU_COUNT(&allowed) < 2) {
    std::printf("left out: no two cores to lose a wake between\n");
    return;
  }
  run_contexts({0, 0}, [&](int rank, const BackendContext& context) {
    stay_on_own_core(rank, allowed);
    const UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    BoardContext board_context{context.topology, context.exchange, bell.get()};
    const std::unique_ptr<Board> board = shm_board_factory()(board_context);
    check(board != nullptr, "there is a board");
    std::atomic<std::uint64_t>& change = board->words()[0].value;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      prepare.arrive(round);
      if (rank == 1) {
        board->notify(whom);  // nobody sleeps: brings what notify() looks at into this core's cache
        begin.arrive(round);
        delay(round / 64 % 256);
        change.store(round, std::memory_order_release);
        board->notify(whom);
        end.arrive(round);
        continue;
      }
      change.load(std::memory_order_relaxed);  // likewise
      begin.arrive(round);
      delay(round % 64);
      board->set_asleep(sleep);
      const bool sees = change.load(std::memory_order_acquire) == round;
      end.arrive(round);
      const bool rung = has_rung(bell);
      seen += sees ? 1 : 0;
      lost += !sees && !rung ? 1 : 0;
      board->set_asleep(Board::Sleep::None);
    }
    context.exchange({});
  });
  INFO("in " << kRounds << " rounds the change was seen " << seen << " times");
  CHECK(lost == 0);
}

}  // namespace

TEST_CASE("a rank that is about to wait sees the change or is woken") {
  sleep_and_notify(Board::Sleep::Waiting, Board::Whom::Waiting);
}

TEST_CASE("a rank that is about to idle sees the change or is woken") {
  sleep_and_notify(Board::Sleep::Idle, Board::Whom::All);
}

}  // namespace ronde::test

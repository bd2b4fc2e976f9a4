// SPDX-License-Identifier: Apache-2.0
// Tests Note [Asleep, then look] with the fences of a plain build, as ThreadSanitizer runs other
// code: two threads on two cores run against each other, and every round is checked for a lost
// wake. Without either of the two fences, x86 loses some in every run.
#include "backends/shm/shm.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "core/src/base/system.h"
#include "tests/shm/group.h"
#include "tests/support/ranks/give_way.h"

namespace ronde::test {
namespace {

constexpr std::uint64_t kRounds = 200'000;

/// A barrier of two threads that spins, so that both continue at the same time.
class Meet {
 public:
  void arrive(std::uint64_t round) {
    arrived_.fetch_add(1);
    for (int looks = 0; arrived_.load() < 2 * round; ++looks) {
      if (looks > kPatience) give_way();
    }
  }

 private:
  static constexpr int kPatience = 100'000;  // the other one may not be running
  alignas(128) std::atomic<std::uint64_t> arrived_{0};
};

cpu_set_t allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  REQUIRE(::sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  return allowed;
}

/// Binds the thread to a core of its own: two threads on one core would never run at the same time.
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

/// Whether the bell was rung; resets it.
bool has_rung(const UniqueFd& bell) {
  std::uint64_t count = 0;
  return ::read(bell.get(), &count, sizeof count) == sizeof count;
}

/// Busy-waits, as rounds differ in which rank is first, and by how much.
void delay(std::uint64_t turns) {
  for (volatile std::uint64_t left = turns; left > 0;) left = left - 1;
}

/// Rank 0 stores that it sleeps and loads the change; rank 1 stores the change and notifies. In
/// each round rank 0 must see the change or be woken. The wait itself is left out: its outcome is
/// known once both have finished the round.
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
        board->notify(whom);  // nobody sleeps: loads what notify() reads into the cache
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

TEST_CASE("a rank that is about to wait or to idle sees the change or is woken") {
  sleep_and_notify(Board::Sleep::Waiting, Board::Whom::Waiting);
  sleep_and_notify(Board::Sleep::Idle, Board::Whom::All);
}

}  // namespace ronde::test

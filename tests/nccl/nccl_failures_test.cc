// SPDX-License-Identifier: Apache-2.0
// What goes wrong in NCCL, under it or beside it ends in time, with its own words, and with nothing
// left behind.
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "tests/support/gpu/gpu_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using namespace std::chrono_literals;

constexpr std::size_t kCount = 3001;

/// A sum that each GPU has queued behind what the program holds there, so that NCCL does not begin.
/// Its operation alone owns the tensor.
struct HeldSum {
  HeldSum(NcclRanks& the_machine, Runtime& runtime, ProgramGpu& the_gpu, bool is_held = true)
      : machine(the_machine), gpu(the_gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    if (is_held) machine.cuda.hold(gpu.stream.handle());
    work = start_owned(runtime, gpu, kCount, memory);
    work.wait_on(nullptr);  // until it is queued
  }
  void release() { machine.cuda.release(gpu.stream.handle()); }
  Death death() {
    return death_of([&] { work.wait(); });
  }

  NcclRanks& machine;
  ProgramGpu& gpu;
  std::weak_ptr<void> memory;
  Work work;
};

/// Two ranks, whose aborts hang, or not: what NCCL may use is kept then, and it ends with them.
struct HangingAborts : NcclRanks {
  explicit HangingAborts(bool abort_hangs) : NcclRanks(2), hangs(abort_hangs) {
    if (!hangs) return;
    options.abort_bound = 50ms;
    nccl.hold_aborts(returns.get_future().share());
  }
  void check_end() {
    if (!hangs) return check_clean();
    CHECK(nccl.live().communicators == 2);
    CHECK(nccl.live().allocations == 2);  // the fusion buffers
    CHECK(cuda.live().streams >= 2);
    returns.set_value();
    wait_for_threads();
    CHECK(nccl.live().communicators == 0);
    CHECK(nccl.misuses() == std::vector<std::string>{});
  }

  const bool hangs;
  std::promise<void> returns;
};

TEST_CASE("nccl errors of calls end the group in their own words, and another one can begin") {
  struct Row {
    std::string symbol;
    int skipped;  ///< calls that are not the first
    std::string words;
    bool is_exact = false;  ///< sent, and combined by the ranks
    bool is_start = false;
  };
  const std::string reducing = "reducing 1 tensor(s) of 3001 elements of f32: ";
  // The failing call is that of whichever rank comes first.
  const Row rows[] = {{"ncclGetUniqueId", 0, "connecting the ranks: ", false, true},
                      {"ncclCommInitRankConfig", 0, "connecting 2 ranks: ", false, true},
                      {"ncclMemAlloc", 0, "allocating ", false, true},
                      {"ncclCommWindowRegister", 0, "registering the ", false, true},
                      {"ncclAllReduce", 1, reducing},
                      {"ncclGroupStart", 0, reducing, true},
                      {"ncclSend", 0, reducing, true},
                      {"ncclGroupEnd", 0, reducing, true},
                      {"ncclAllGather", 0, reducing, true}};
  for (const Row& row : rows) {
    CAPTURE(row.symbol);
    NcclRanks machine(2);
    machine.options.exact = row.is_exact;
    machine.options.init_timeout_s = row.is_start ? 3 : 120;
    machine.cuda.fail(row.symbol, nccl::kInternalError, 1, row.skipped);
    const auto check_text = [&](const std::string& text) {
      check_contains(text, "NCCL failed while " + row.words);
      check_contains(text, row.symbol + ": the fake says so (3)");
    };
    if (row.is_start) machine.fail_to_start(check_text);
    if (!row.is_start) {
      machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
        GpuSum sum(runtime, gpu, kCount);
        check_text(death_of([&] { sum.start().wait(); }).text);
      });
    }
    machine.end_connecting();
    machine.options.init_timeout_s = 120;
    machine.check_recovery();
  }
}

TEST_CASE("nccl that waits for a rank to connect gives up at its deadline") {
  NcclRanks machine(2);
  machine.options.init_timeout_s = 0.5;
  machine.nccl.lose_a_rank();
  machine.fail_to_start([](const std::string& text) {
    check_contains(text, "connecting 2 ranks: not all of the 2 ranks have come in time");
  });
  // The threads that nobody waits for any more still connect, and give back all that they hold.
  CHECK(machine.cuda.live().contexts > 0);
  machine.end_connecting();
}

TEST_CASE("nccl that waits for a rank of a process set sees at once that it has died") {
  NcclRanks machine(2);
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    together.arrive_and_wait();
    const int before = machine.cuda.calls("ncclCommInitRankConfig");
    const bool dies = runtime.topology().rank == 1;
    if (dies) machine.nccl.lose_a_rank();
    together.arrive_and_wait();
    std::thread killer([&] {
      while (machine.cuda.calls("ncclCommInitRankConfig") < before + 2) std::this_thread::yield();
      if (!dies) return;
      machine.kill(1);
      runtime.abort("it was killed");  // as nothing reaches it any more
    });
    const Death death = death_of([&] { runtime.add_process_set({0, 1}); });
    killer.join();
    check(dies || death.rank == 1, "the one that died is named");
  });
  machine.end_connecting();
}

TEST_CASE("nccl calls that block when a rank dies are ended by abort, or left within its bound") {
  const bool abort_hangs = GENERATE(false, true);
  CAPTURE(abort_hangs);
  HangingAborts machine(abort_hangs);
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    together.arrive_and_wait();
    const int before = machine.cuda.calls("ncclAllReduce");
    if (runtime.topology().rank == 0) machine.nccl.lose_a_rank();
    together.arrive_and_wait();
    std::weak_ptr<void> memory;
    const Work work = start_owned(runtime, gpu, kCount, memory);
    while (machine.cuda.calls("ncclAllReduce") < before + 2) std::this_thread::yield();
    if (runtime.topology().rank == 1) return machine.kill(1);
    check(death_of([&] { work.wait(); }).rank == 1, "the one that died is named");
    // The call may still queue work on it.
    check(memory.expired() == !abort_hangs, "the memory is kept while NCCL has it");
  });
  machine.check_end();
}

TEST_CASE("nccl that breaks down under queued work is found out, and its work is ended") {
  const bool abort_hangs = GENERATE(false, true);
  CAPTURE(abort_hangs);
  HangingAborts machine(abort_hangs);
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    HeldSum sum(machine, runtime, gpu);
    together.arrive_and_wait();
    if (runtime.topology().rank == 0) machine.nccl.break_down(nccl::kRemoteError);
    together.arrive_and_wait();
    sum.release();
    check_contains(sum.death().text,
                   "NCCL failed while reducing 1 tensor(s) of 3001 elements of f32: "
                   "ncclCommGetAsyncError: the fake says so (6)");
    check(sum.memory.expired() == !abort_hangs, "the memory is kept while NCCL may write there");
  });
  machine.check_end();
}

TEST_CASE("nccl's survivors of a rank that dies raise in time, with their memory") {
  NcclRanks machine(2);
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    const bool dies = runtime.topology().rank == 1;
    HeldSum sum(machine, runtime, gpu, dies);  // its GPU never comes to the sum
    together.arrive_and_wait();
    if (dies) {
      machine.kill(1);
    } else {
      sum.release();
      check(sum.death().rank == 1, "the one that died is named");
      check(sum.memory.expired(), "the memory was handed back");
    }
    together.arrive_and_wait();
    sum.release();
  });
  machine.check_clean();
  machine.check_recovery();
}

TEST_CASE("nccl leaves a rank's queued work the memory that it uses, when the rank has left") {
  NcclRanks machine(2);
  machine.options.abort_bound = 50ms;
  machine.options.exact = true;  // which packs
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    HeldSum sum(machine, runtime, gpu, runtime.topology().rank == 1);
    together.arrive_and_wait();
    if (runtime.topology().rank == 0) check(sum.death().rank == 1, "the one that left is named");
  });
  machine.cuda.release_all();
  CHECK(machine.cuda.is_idle());
}

TEST_CASE("nccl work that does not end is given up at the limit of stalls") {
  NcclRanks machine(2);
  machine.config.stall_warn_s = 0.1;
  machine.config.stall_abort_s = 5.0;
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    HeldSum sum(machine, runtime, gpu, runtime.topology().rank == 1);
    check_contains(sum.death().text, "has been queued on the GPU of rank ");
    together.arrive_and_wait();
    sum.release();
  });
  CHECK(machine.nccl.misuses() == std::vector<std::string>{});
  CHECK(machine.nccl.live() == FakeNccl::Live{});
  // The tensor that a GPU had not come to is kept.
  CHECK(machine.cuda.live() == FakeCuda::Live{.contexts = 1, .allocations = 1});
}

TEST_CASE("nccl that does not close in time is an error of the shutdown, and is aborted") {
  NcclRanks machine(2);
  machine.options.close_bound = 20ms;
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, 10);
    together.arrive_and_wait();
    machine.nccl.lose_a_rank();
    const Death death = death_of([&] { runtime.shutdown(); });
    check_contains(death.text, "cannot close its backend: NCCL failed while closing");
  });
  machine.check_clean();
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// What goes wrong in NCCL, under it or beside it ends in time, with its own words, and with nothing
// left behind.
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "tests/support/gpu/nccl_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using namespace std::chrono_literals;

constexpr std::size_t kCount = 3001;

/// A sum that each GPU has queued behind what the program holds there, so that NCCL does not begin.
/// Its operation alone owns the tensor.
class HeldSum {
 public:
  HeldSum(NcclRanks& machine, Runtime& runtime, ProgramGpu& gpu, bool is_held = true)
      : machine_(machine), gpu_(gpu) {
    sum_on_gpu(runtime, gpu, kCount);  // connects
    if (is_held) machine_.cuda.hold(gpu_.stream.handle());
    work_ = start_owned(runtime, gpu, kCount, memory_);
    work_.wait_on(nullptr);  // until it is queued
  }

  void release() { machine_.cuda.release(gpu_.stream.handle()); }
  Death death() {
    return death_of([&] { work_.wait(); });
  }
  bool is_handed_back() const { return memory_.expired(); }

 private:
  NcclRanks& machine_;
  ProgramGpu& gpu_;
  std::weak_ptr<void> memory_;
  Work work_;
};

/// NCCL breaks down while every rank's sum is held, which is then released; then `check_end`.
void run_to_breakdown(NcclRanks& machine, nccl::Result result,
                      const std::function<void(HeldSum& sum)>& check_end) {
  std::barrier together(machine.size());
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    HeldSum sum(machine, runtime, gpu);
    together.arrive_and_wait();
    if (runtime.topology().rank == 0) machine.nccl.break_down(result);
    together.arrive_and_wait();
    sum.release();
    check_end(sum);
  });
}

TEST_CASE("nccl errors of calls end the group in their own words, and another one can begin") {
  struct Row {
    std::string symbol;
    int skipped;  ///< calls that are not of the sum, or not the first
    DataType dtype;
    std::string words;
  };
  const std::string reducing_f32 = "reducing 1 tensor(s) of 3001 elements of f32: ";
  const std::string reducing_f16 = "reducing 1 tensor(s) of 3001 elements of f16: ";
  // The failing call is that of whichever rank comes first.
  const Row rows[] = {
      {"ncclGetUniqueId", 0, DataType::F32, "connecting the ranks: "},
      {"ncclCommInitRankConfig", 0, DataType::F32, "connecting 2 ranks: "},
      {"ncclMemAlloc", 0, DataType::F16, ""},
      {"ncclCommWindowRegister", 0, DataType::F16, "registering the fusion buffer of 2048 bytes: "},
      {"ncclAllReduce", 1, DataType::F32, reducing_f32},
      {"ncclGroupStart", 0, DataType::F16, reducing_f16},
      {"ncclSend", 0, DataType::F16, reducing_f16},
      {"ncclGroupEnd", 0, DataType::F16, reducing_f16},
      {"ncclAllGather", 0, DataType::F16, reducing_f16}};
  for (const Row& row : rows) {
    CAPTURE(row.symbol);
    NcclRanks machine(2);
    machine.options.exact = row.dtype == DataType::F16;  // sent, and combined by the ranks
    machine.cuda.fail(row.symbol, nccl::kInternalError, 1, row.skipped);
    machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
      GpuSum sum(runtime, gpu, kCount);
      Request request = sum.request();
      request.dtype = row.dtype;
      const Death death = death_of([&] { runtime.submit(std::move(request)).wait(); });
      check_contains(death.text, "NCCL failed while ");
      check_contains(death.text, row.words + row.symbol);
      check_contains(death.text, ": the fake says so (3)");
    });
    machine.end_connecting();
    machine.check_clean();
    machine.check_recovery();
  }
}

TEST_CASE("nccl without memory on the GPU for the fusion buffer ends the group") {
  NcclRanks machine(2);
  machine.options.registration_cache = false;
  machine.options.exact = true;  // which packs
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    GpuSum sum(runtime, gpu, 10);
    together.arrive_and_wait();
    machine.cuda.fail("cuMemAlloc_v2", cuda::kOutOfMemory, 1000);
    Request request = sum.request();
    request.dtype = DataType::F16;
    const std::string text = death_of([&] { runtime.run(std::move(request)); }).text;
    check_contains(text, "CUDA failed while allocating ");
    check_contains(text, "choose a smaller RONDE_FUSION_BYTES");
  });
  machine.check_clean();
}

TEST_CASE("nccl that waits for a rank to connect gives up at its deadline, or when a rank dies") {
  const bool dies = GENERATE(false, true);
  CAPTURE(dies);
  NcclRanks machine(2);
  // A thread of each rank begins to connect meanwhile.
  if (!dies) machine.options.init_timeout_s = 1;
  machine.nccl.lose_a_rank(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    std::weak_ptr<void> memory;
    const Work work = start_owned(runtime, gpu, kCount, memory);
    while (dies && machine.cuda.calls("ncclCommInitRankConfig") < 2) std::this_thread::yield();
    if (dies && runtime.topology().rank == 1) return machine.kill(1);
    const Death death = death_of([&] { work.wait(); });
    if (dies) check(death.rank == 1, "the one that died is named: " + death.text);
    if (!dies) {
      check_contains(death.text, "connecting 2 ranks: not all of the 2 ranks have come in time");
    }
    check(memory.expired(), "the memory was handed back");
  });
  // The threads that nobody waits for any more still connect, and give back all that they hold.
  CHECK(machine.cuda.live().contexts > 0);
  machine.end_connecting();
  machine.check_clean();
}

TEST_CASE("nccl calls that block when a rank dies are ended by abort, or left within its bound") {
  const bool abort_hangs = GENERATE(false, true);
  CAPTURE(abort_hangs);
  NcclRanks machine(2);
  std::promise<void> returns;
  if (abort_hangs) {
    machine.options.abort_bound = 50ms;
    machine.nccl.hold_aborts(returns.get_future().share());
  }
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    together.arrive_and_wait();
    const int before = machine.cuda.calls("ncclAllReduce");
    if (runtime.topology().rank == 0) machine.nccl.hold_calls();
    together.arrive_and_wait();
    std::weak_ptr<void> memory;
    const Work work = start_owned(runtime, gpu, kCount, memory);
    while (machine.cuda.calls("ncclAllReduce") < before + 2) std::this_thread::yield();
    if (runtime.topology().rank == 1) return machine.kill(1);
    check(death_of([&] { work.wait(); }).rank == 1, "the one that died is named");
    // The call may still queue work on it.
    check(memory.expired() == !abort_hangs, "the memory is kept while NCCL has it");
  });
  if (abort_hangs) {
    CHECK(machine.nccl.live().communicators == 2);
    returns.set_value();
    machine.wait_for_threads();
    CHECK(machine.nccl.live().communicators == 0);
    CHECK(machine.nccl.misuses() == std::vector<std::string>{});
    return;
  }
  machine.check_clean();
}

TEST_CASE("nccl that breaks down under queued work is found out, and its work is ended") {
  NcclRanks machine(2);
  run_to_breakdown(machine, nccl::kRemoteError, [](HeldSum& sum) {
    check_contains(sum.death().text,
                   "NCCL failed while reducing 1 tensor(s) of 3001 elements of f32: "
                   "ncclCommGetAsyncError: the fake says so (6)");
    check(sum.is_handed_back(), "the memory was handed back");
  });
  machine.check_clean();
}

TEST_CASE("nccl's survivors of a rank that dies raise in time, with their memory") {
  NcclRanks machine(2);
  const int last = machine.size() - 1;
  std::barrier together(machine.size());
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    const bool dies = runtime.topology().rank == last;
    HeldSum sum(machine, runtime, gpu, dies);  // its GPU never comes to the sum
    together.arrive_and_wait();
    if (dies) {
      machine.kill(last);
    } else {
      sum.release();
      check(sum.death().rank == last, "the one that died is named");
      check(sum.is_handed_back(), "the memory was handed back");
    }
    together.arrive_and_wait();
    sum.release();
  });
  machine.check_clean();
  machine.check_recovery();
}

TEST_CASE("nccl work that does not end is given up at the limit of stalls") {
  NcclRanks machine(2);
  machine.config.stall_warn_s = 0.1;
  machine.config.stall_abort_s = 2.0;
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

TEST_CASE("nccl whose abort hangs is left to itself within bounds, with memory that it may use") {
  NcclRanks machine(2);
  machine.options.abort_bound = 20ms;
  std::promise<void> returns;
  machine.nccl.hold_aborts(returns.get_future().share());
  run_to_breakdown(machine, nccl::kSystemError, [](HeldSum& sum) {
    static_cast<void>(sum.death());
    check(!sum.is_handed_back(), "NCCL may still write there: the memory is kept");
  });
  CHECK(machine.nccl.live().communicators == 2);
  CHECK(machine.nccl.live().allocations == 2);  // the fusion buffers, which NCCL may still use
  CHECK(machine.cuda.live().streams >= machine.size());
  returns.set_value();
  machine.wait_for_threads();
  CHECK(machine.nccl.live().communicators == 0);
  CHECK(machine.nccl.misuses() == std::vector<std::string>{});
}

TEST_CASE("nccl that does not close in time is an error of the shutdown, and is aborted") {
  NcclRanks machine(2);
  machine.options.close_bound = 20ms;
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    for (int step = 0; step < 2; ++step) sum_on_gpu(runtime, gpu, 10);
    machine.nccl.lose_a_rank();
    const Death death = death_of([&] { runtime.shutdown(); });
    check_contains(death.text, "cannot close its backend: NCCL failed while closing");
  });
  machine.check_clean();
}

}  // namespace

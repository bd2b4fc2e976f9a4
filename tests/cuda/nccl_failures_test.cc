// SPDX-License-Identifier: Apache-2.0
// What goes wrong in NCCL, under it, beside it or between hosts ends in time, with its own words,
// and with nothing left behind.
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "nccl_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using namespace std::chrono_literals;

constexpr std::size_t kCount = 3001;  // the last chunk of several hosts is packed

/// Two ranks of a host; or two of each of two hosts, between which sums cross.
std::unique_ptr<NcclRanks> make_machine(bool has_hosts) {
  if (has_hosts) return std::make_unique<NcclHosts>(std::vector{0, 1, 1, 0});
  return std::make_unique<NcclRanks>(2);
}

/// A sum that each GPU has queued behind what the program holds there, so that NCCL does not begin.
/// Its operation alone owns the tensor.
class HeldSum {
 public:
  HeldSum(NcclRanks& machine, Runtime& runtime, ProgramGpu& gpu, bool has_hosts,
          bool is_held = true)
      : machine_(machine), gpu_(gpu) {
    if (!has_hosts) sum_on_gpu(runtime, gpu, kCount);  // connects
    if (is_held) machine_.cuda.hold(gpu_.stream.handle());
    work_ = start_owned(runtime, gpu, kCount, memory_);
    if (!has_hosts) work_.wait_on(nullptr);  // until it is queued
    // Each rank has written its tensor, and queued three copies of its share, as many as there are
    // pieces on their way at the same time, behind what NCCL does before.
    while (has_hosts && machine_.cuda.calls("cuMemcpyAsync") < machine_.size() * (1 + 3)) {
      std::this_thread::yield();
    }
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
void run_to_breakdown(NcclRanks& machine, bool has_hosts, nccl::Result result,
                      const std::function<void(HeldSum& sum)>& check_end) {
  std::barrier together(machine.size());
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    HeldSum sum(machine, runtime, gpu, has_hosts);
    together.arrive_and_wait();
    if (runtime.topology().rank == 0) machine.nccl.break_down(result);
    together.arrive_and_wait();
    sum.release();
    check_end(sum);
  });
}

TEST_CASE("nccl errors of calls end the group in their own words, and another one can begin") {
  struct Row {
    bool has_hosts;
    std::string symbol;
    int skipped;  ///< calls that are not of the sum, or not the first
    DataType dtype;
    std::string words;
  };
  const std::string reducing_f32 = "reducing 1 tensor(s) of 3001 elements of f32: ";
  const std::string reducing_f16 = "reducing 1 tensor(s) of 3001 elements of f16: ";
  // The failing call is that of whichever rank comes first.
  const Row rows[] = {
      {false, "ncclGetUniqueId", 0, DataType::F32, "connecting the ranks: "},
      {false, "ncclCommInitRankConfig", 0, DataType::F32, "connecting 2 ranks: "},
      {false, "ncclMemAlloc", 0, DataType::F16, ""},
      {false, "ncclCommRegister", 0, DataType::F16,
       "registering the fusion buffer of 2048 bytes: "},
      {false, "ncclAllReduce", 1, DataType::F32, reducing_f32},
      {false, "ncclGroupStart", 0, DataType::F16, reducing_f16},
      {false, "ncclSend", 0, DataType::F16, reducing_f16},
      {false, "ncclGroupEnd", 0, DataType::F16, reducing_f16},
      {false, "ncclAllGather", 0, DataType::F16, reducing_f16},
      {true, "ncclGetUniqueId", 1, DataType::F32, "connecting the ranks: "},
      {true, "ncclCommInitRankConfig", 4, DataType::F32, "connecting 2 ranks: "},
      {true, "ncclCommRegister", 0, DataType::F32, "registering the fusion buffer of 2048 bytes: "},
      {true, "ncclReduceScatter", 6, DataType::F32, reducing_f32},
      {true, "ncclAllGather", 3, DataType::F32, reducing_f32},
      {true, "ncclSend", 1, DataType::F16, reducing_f16},
      {true, "ncclGroupEnd", 2, DataType::F16, reducing_f16}};
  for (const Row& row : rows) {
    CAPTURE(row.has_hosts, row.symbol);
    const auto machine = make_machine(row.has_hosts);
    machine->cuda.fail(row.symbol, nccl::kInternalError, 1, row.skipped);
    machine->run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
      GpuSum sum(runtime, gpu, kCount);
      Request request = sum.request();
      request.dtype = row.dtype;
      const Death death = death_of([&] { runtime.submit(std::move(request)).wait(); });
      check_contains(death.text, "NCCL failed while ");
      check_contains(death.text, row.words + row.symbol);
      if (row.symbol != "ncclCommRegister") check_contains(death.text, ": the fake says so (3)");
    });
    machine->check_clean();
    machine->check_recovery();
  }
}

TEST_CASE("nccl without memory on the GPU for the fusion buffer ends the group") {
  NcclRanks machine(2);
  machine.options.registration_cache = false;
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

TEST_CASE("nccl between hosts: errors of the GPU on the way through host memory end the group") {
  struct Row {
    std::string symbol;
    int skipped;
  };
  for (const Row& row : {Row{"cuMemHostAlloc", 0}, {"cuMemcpyAsync", 0}, {"cuMemcpyAsync", 9}}) {
    CAPTURE(row.symbol, row.skipped);
    NcclHosts machine({0, 0, 1, 1});
    std::barrier together(4);
    machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
      GpuSum sum(runtime, gpu, kCount);
      together.arrive_and_wait();
      if (runtime.topology().rank == 3) {
        machine.cuda.fail_on(machine.device_of[3], row.symbol, cuda::kInvalidValue, 1, row.skipped);
      }
      const Death death = death_of([&] { sum.start().wait(); });
      check(death.rank == 3, "rank 3 is to blame: " + death.text);
    });
    machine.check_clean();
    machine.check_recovery();
  }
}

TEST_CASE("nccl between hosts: an error of the CPU's backend ends the group in its words") {
  const int nth = GENERATE(1, 2, 7);  // shares, results, and those of a later piece
  NcclHosts machine({0, 0, 1, 1});
  std::barrier together(4);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    sum_on_gpu(runtime, gpu, kCount);
    GpuSum sum(runtime, gpu, kCount);
    together.arrive_and_wait();
    if (runtime.topology().rank == 2) machine.faults(2).fail_start(nth, "no route to that host");
    const Death death = death_of([&] { sum.start().wait(); });
    check_contains(death.text, "no route to that host");
    check(death.rank == 2, "rank 2 is to blame: " + death.text);
  });
  machine.check_clean();
  machine.check_recovery();
}

TEST_CASE("nccl that waits for a rank to connect gives up at its deadline, or when a rank dies") {
  const bool has_hosts = GENERATE(false, true);
  const bool dies = GENERATE(false, true);
  CAPTURE(has_hosts, dies);
  const auto machine = make_machine(has_hosts);
  if (!dies) machine->options.init_timeout_s = has_hosts ? 1.0 : 0.05;
  machine->nccl.lose_a_rank(2);
  const int last = machine->size() - 1;
  // Several hosts connect all ranks first, which succeeds.
  const int begun = has_hosts ? 2 * machine->size() : machine->size();
  machine->run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    std::weak_ptr<void> memory;
    const Work work = start_owned(runtime, gpu, kCount, memory);
    while (dies && machine->cuda.calls("ncclCommInitRankConfig") < begun) std::this_thread::yield();
    if (dies && runtime.topology().rank == last) return machine->kill(last);
    const Death death = death_of([&] { work.wait(); });
    if (dies) check(death.rank == last, "the one that died is named: " + death.text);
    if (!dies) {
      check_contains(death.text, "connecting 2 ranks: not all of the 2 ranks have come in time");
    }
    check(memory.expired(), "the memory was handed back");
  });
  machine->check_clean();
}

TEST_CASE("nccl that breaks down under queued work is found out, and its work is ended") {
  const bool has_hosts = GENERATE(false, true);
  CAPTURE(has_hosts);
  const auto machine = make_machine(has_hosts);
  run_to_breakdown(*machine, has_hosts, nccl::kRemoteError, [](HeldSum& sum) {
    check_contains(sum.death().text,
                   "NCCL failed while reducing 1 tensor(s) of 3001 elements of f32: "
                   "ncclCommGetAsyncError: the fake says so (6)");
    check(sum.is_handed_back(), "the memory was handed back");
  });
  machine->check_clean();
}

TEST_CASE("nccl's survivors of a rank that dies raise in time, with their memory") {
  const bool has_hosts = GENERATE(false, true);
  CAPTURE(has_hosts);
  const auto machine = make_machine(has_hosts);
  const int last = machine->size() - 1;
  std::barrier together(machine->size());
  machine->run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    const bool dies = runtime.topology().rank == last;
    // The GPU of the last one never comes to the sum; of several hosts, none does at first.
    HeldSum sum(*machine, runtime, gpu, has_hosts, has_hosts || dies);
    together.arrive_and_wait();
    if (dies) {
      machine->kill(last);
    } else {
      sum.release();
      check(sum.death().rank == last, "the one that died is named");
      check(sum.is_handed_back(), "the memory was handed back");
    }
    together.arrive_and_wait();
    sum.release();
  });
  machine->check_clean();
  machine->check_recovery();
}

TEST_CASE("nccl work that does not end is given up at the limit of stalls") {
  NcclRanks machine(2);
  machine.config.stall_warn_s = 0.1;
  machine.config.stall_abort_s = 0.2;
  std::barrier together(2);
  machine.run_to_its_death([&](Runtime& runtime, ProgramGpu& gpu) {
    HeldSum sum(machine, runtime, gpu, false, runtime.topology().rank == 1);
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
  const bool has_hosts = GENERATE(false, true);
  CAPTURE(has_hosts);
  const auto machine = make_machine(has_hosts);
  machine->options.abort_bound = 20ms;
  std::promise<void> returns;
  machine->nccl.hold_aborts(returns.get_future().share());
  run_to_breakdown(*machine, has_hosts, nccl::kSystemError, [](HeldSum& sum) {
    static_cast<void>(sum.death());
    check(!sum.is_handed_back(), "NCCL may still write there: the memory is kept");
  });
  CHECK(machine->nccl.live().communicators == (has_hosts ? 8 : 2));
  CHECK(machine->nccl.live().allocations == 0);  // no fusion buffer was needed
  CHECK((machine->cuda.live().host_allocations > 0) == has_hosts);
  CHECK(machine->cuda.live().streams >= machine->size());
  returns.set_value();
  while (machine->nccl.live().communicators > 0) std::this_thread::yield();
  CHECK(machine->nccl.misuses() == std::vector<std::string>{});
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

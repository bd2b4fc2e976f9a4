// SPDX-License-Identifier: Apache-2.0
// What goes wrong in NCCL, under it or beside it ends in time, with its own words, and with nothing
// left behind.
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <thread>

#include "nccl_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using namespace std::chrono_literals;

/// A sum of ones on the rank's GPU.
class Sum {
 public:
  explicit Sum(std::size_t count) : values_(std::make_shared<std::vector<float>>(count, 1.0F)) {}

  Request request(Device gpu, void* stream = nullptr) {
    Request request = sum_request(*values_, "sum");
    request.device = gpu;
    request.stream = stream;
    request.keep_alive = values_;
    return request;
  }
  bool is(float number) const { return *values_ == std::vector<float>(values_->size(), number); }
  void* data() const { return values_->data(); }
  std::size_t bytes() const { return values_->size() * sizeof(float); }
  /// Who owns the memory, beside this.
  long other_owners() const { return values_.use_count() - 1; }

 private:
  const std::shared_ptr<std::vector<float>> values_;
};

/// One sum, which all ranks see die in these words.
void check_death(NcclRanks& machine, const std::string& words, std::size_t count = 1000) {
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    Sum sum(count);
    const Death death = death_of([&] { runtime.run(sum.request(machine.device(rank))); });
    check_contains(death.text, words);
    check(sum.other_owners() == 0, "the memory was handed back");
  });
}

/// The same machine serves the next job.
void check_recovery(NcclRanks& machine) {
  machine.group = inproc::Group(static_cast<int>(machine.device_of.size()));
  machine.run([&](int rank, Runtime& runtime) {
    Sum sum(1000);
    runtime.run(sum.request(machine.device(rank)));
    check(sum.is(static_cast<float>(machine.device_of.size())), "the sum of the next job");
  });
}

TEST_CASE("nccl errors of calls end the group in their own words, and another one can begin") {
  struct Row {
    std::string symbol;
    int skipped;
    std::string words;
  };
  // The failing call is that of whichever rank comes first.
  const Row rows[] = {
      {"ncclGetUniqueId", 0, "NCCL failed while connecting the ranks: ncclGetUniqueId"},
      {"ncclCommInitRankConfig", 0, "connecting 2 ranks: ncclCommInitRankConfig: the fake says so"},
      {"ncclMemAlloc", 0, "ncclMemAlloc: the fake says so (3)"},
      {"ncclCommRegister", 0, "registering the fusion buffer of 2048 bytes: ncclCommRegister"},
      {"ncclAllReduce", 1, "reducing 2 tensor(s) of 2000 elements of f32: ncclAllReduce"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.symbol);
    NcclRanks machine(2);
    machine.nccl.fail(row.symbol, nccl::kInternalError, 1, row.skipped);
    machine.run_to_its_death([&](int rank, Runtime& runtime) {
      Sum one(1000), two(1000);
      std::vector<Request> requests = {one.request(machine.device(rank)),
                                       two.request(machine.device(rank))};
      requests[0].name = "one";
      requests[1].name = "two";
      const std::vector<Work> works = runtime.submit_group(requests);
      check_contains(death_of([&] { works[0].wait(); }).text, row.words);
      check_contains(death_of([&] { works[1].wait(); }).text, row.words);
    });
    machine.check_clean();
    check_recovery(machine);
  }
}

TEST_CASE("nccl halves whose exchange cannot be called end the group") {
  for (const std::string symbol : {"ncclGroupStart", "ncclSend", "ncclGroupEnd", "ncclAllGather"}) {
    CAPTURE(symbol);
    NcclRanks machine(2);
    machine.nccl.fail(symbol, nccl::kInvalidArgument);
    machine.run_to_its_death([&](int rank, Runtime& runtime) {
      Buffers buffers(DataType::F16, 10);
      const Request request = request_on(machine.device(rank), Collective::Allreduce, "x", buffers);
      check_contains(death_of([&] { runtime.run(request); }).text,
                     symbol + ": the fake says so (4)");
    });
    machine.check_clean();
    check_recovery(machine);
  }
}

TEST_CASE("nccl without memory on the GPU for the fusion buffer ends the group") {
  NcclRanks machine(2);
  machine.options.registration_cache = false;
  machine.cuda.fail("cuMemAlloc_v2", cuda::kOutOfMemory, 1000);
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    Buffers buffers(DataType::F16, 10);
    const Request request = request_on(machine.device(rank), Collective::Allreduce, "x", buffers);
    const std::string text = death_of([&] { runtime.run(request); }).text;
    check_contains(text, "CUDA failed while allocating ");
    check_contains(text, "choose a smaller RONDE_FUSION_BYTES");
  });
  machine.check_clean();
}

TEST_CASE("nccl that waits for a rank that never connects gives up at its deadline") {
  NcclRanks machine(2);
  machine.options.init_timeout_s = 0.05;
  machine.nccl.lose_a_rank();
  check_death(machine, "connecting 2 ranks: not all of the 2 ranks have come in time");
  machine.check_clean();
}

TEST_CASE("nccl that breaks down under queued work is found out, and its work is ended") {
  NcclRanks machine(2);
  std::latch queued(2);
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    ProgramStream stream(machine, rank);
    Sum first(1000), sum(1000);
    runtime.run(first.request(machine.device(rank)));
    // What comes before is held, so that the sum is queued and does not run.
    stream.hold_before_copy(sum.data(), sum.data(), sum.bytes());
    const Work work = runtime.submit(sum.request(machine.device(rank), stream.handle()));
    work.wait_on(nullptr);  // until it is queued
    queued.arrive_and_wait();
    if (rank == 0) machine.nccl.break_down(nccl::kRemoteError);
    stream.release();
    const Death death = death_of([&] { work.wait(); });
    check_contains(death.text,
                   "NCCL failed while reducing 1 tensor(s) of 1000 elements of f32: "
                   "ncclCommGetAsyncError: the fake says so (6)");
    check(sum.other_owners() == 0, "the memory was handed back");
  });
  machine.check_clean();
}

TEST_CASE("nccl's survivors of a rank that dies raise in time, with their memory") {
  NcclRanks machine(3);
  std::latch queued(3), over(3);
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    ProgramStream stream(machine, rank);
    Sum first(1000), sum(1000);
    runtime.run(first.request(machine.device(rank)));
    // The GPU of the last one never comes to the sum.
    if (rank == 2) stream.hold_before_copy(sum.data(), sum.data(), sum.bytes());
    const Work work = runtime.submit(sum.request(machine.device(rank), stream.handle()));
    work.wait_on(nullptr);
    queued.arrive_and_wait();
    if (rank == 2) {
      machine.group.kill(2);
    } else {
      const Death death = death_of([&] { work.wait(); });
      check(death.rank == 2, "the one that died is named");
      check(sum.other_owners() == 0, "the memory was handed back");
    }
    over.arrive_and_wait();
    if (rank == 2) stream.release();
  });
  machine.check_clean();
  check_recovery(machine);
}

TEST_CASE("nccl that waits for a rank to connect ends when that one dies") {
  NcclRanks machine(3);
  machine.nccl.lose_a_rank();
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    Sum sum(1000);
    const Work work = runtime.submit(sum.request(machine.device(rank)));
    while (machine.nccl.calls("ncclCommInitRankConfig") < 3) std::this_thread::yield();
    if (rank == 2) {
      machine.group.kill(2);
      return;
    }
    check(death_of([&] { work.wait(); }).rank == 2, "the one that died is named");
    check(sum.other_owners() == 0, "the memory was handed back");
  });
  machine.check_clean();
}

TEST_CASE("nccl work that does not end is given up at the limit of stalls") {
  NcclRanks machine(2);
  machine.config.stall_warn_s = 0.1;
  machine.config.stall_abort_s = 0.2;
  std::latch over(2);
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    ProgramStream stream(machine, rank);
    Sum sum(1000);
    if (rank == 1) stream.hold_before_copy(sum.data(), sum.data(), sum.bytes());
    const Work work = runtime.submit(sum.request(machine.device(rank), stream.handle()));
    const Death death = death_of([&] { work.wait(); });
    check_contains(death.text, "has been queued on the GPU of rank ");
    over.arrive_and_wait();
    if (rank == 1) stream.release();
  });
  machine.check_clean();
}

TEST_CASE(
    "nccl whose abort hangs is left to itself within bounds, and memory that it may use too") {
  NcclRanks machine(2);
  machine.options.abort_bound = 20ms;
  std::promise<void> returns;
  machine.nccl.hold_aborts(returns.get_future().share());
  std::latch queued(2);
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    Sum first(1000);
    runtime.run(first.request(machine.device(rank)));
    ProgramStream stream(machine, rank);
    Sum sum(1000);
    stream.hold_before_copy(sum.data(), sum.data(), sum.bytes());
    const Work work = runtime.submit(sum.request(machine.device(rank), stream.handle()));
    work.wait_on(nullptr);
    queued.arrive_and_wait();
    if (rank == 0) machine.nccl.break_down(nccl::kSystemError);
    stream.release();
    static_cast<void>(death_of([&] { work.wait(); }));
    check(sum.other_owners() > 0, "NCCL may still write there: the memory is kept");
  });
  CHECK(machine.nccl.live().communicators == 2);
  CHECK(machine.nccl.live().allocations == 0);  // no fusion buffer was needed
  CHECK(machine.cuda.live().streams == 2);
  returns.set_value();
  while (machine.nccl.live().communicators > 0) std::this_thread::yield();
  CHECK(machine.nccl.misuses() == std::vector<std::string>{});
}

TEST_CASE("nccl that does not close in time is an error of the shutdown, and is aborted") {
  NcclRanks machine(2);
  machine.options.close_bound = 20ms;
  machine.run_to_its_death([&](int rank, Runtime& runtime) {
    Sum sum(10);
    runtime.run(sum.request(machine.device(rank)));
    Sum second(10);
    runtime.run(second.request(machine.device(rank)));
    machine.nccl.lose_a_rank();
    const Death death = death_of([&] { runtime.shutdown(); });
    check_contains(death.text, "cannot close its backend: NCCL failed while closing");
  });
  machine.check_clean();
}

}  // namespace

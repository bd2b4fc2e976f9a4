// SPDX-License-Identifier: Apache-2.0
// What goes wrong within a host, or between hosts, ends the group in time and in its own words,
// with nothing left behind.
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "nccl_hosts.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using namespace std::chrono_literals;

constexpr std::size_t kCount = 3001;  // its last chunk is packed

/// The same machine serves the next job.
void check_recovery(NcclHosts& hosts) {
  hosts.run([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    sum_on_gpu(runtime, gpu, kCount);
  });
}

/// A sum that waits on each GPU for what the program has queued before, so that what NCCL does
/// within the hosts does not begin; its operation alone owns the tensor.
class HeldSum {
 public:
  HeldSum(NcclHosts& hosts, Runtime& runtime, ProgramGpu& gpu) : hosts_(hosts), gpu_(gpu) {
    const auto sum = std::make_shared<GpuSum>(runtime, gpu, kCount);
    memory_ = sum;
    hosts_.machine.cuda.hold(gpu_.stream.handle());
    Request request = sum->request("held");
    request.keep_alive = sum;
    work_ = runtime.submit(std::move(request));
  }
  ~HeldSum() { release(); }
  HeldSum(const HeldSum&) = delete;
  HeldSum& operator=(const HeldSum&) = delete;

  void release() { hosts_.machine.cuda.release(gpu_.stream.handle()); }
  Death death() {
    return death_of([&] { work_.wait(); });
  }
  bool is_handed_back() const { return memory_.expired(); }

 private:
  NcclHosts& hosts_;
  ProgramGpu& gpu_;
  std::weak_ptr<void> memory_;
  Work work_;
};

void wait_for_calls(const NcclHosts& hosts, const std::string& symbol, int calls) {
  while (hosts.machine.nccl.calls(symbol) < calls) std::this_thread::yield();
}

/// Until each rank has written its tensor, and queued three copies of its share, as many as there
/// are pieces on their way at the same time, behind what NCCL does before.
void wait_until_held(const NcclHosts& hosts) {
  while (hosts.machine.cuda.calls("cuMemcpyAsync") < hosts.size() * (1 + 3)) {
    std::this_thread::yield();
  }
}

/// NCCL breaks down while every rank's sum is held, which is then released; then `check_end`.
void run_to_breakdown(NcclHosts& hosts, nccl::Result result,
                      const std::function<void(HeldSum& sum)>& check_end) {
  std::barrier together(hosts.size());
  hosts.run_to_its_death([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    HeldSum sum(hosts, runtime, gpu);
    wait_until_held(hosts);
    together.arrive_and_wait();
    if (rank == 0) hosts.machine.nccl.break_down(result);
    together.arrive_and_wait();
    sum.release();
    check_end(sum);
  });
}

}  // namespace

TEST_CASE("nccl hosts: errors of calls within a host end the group in their own words") {
  struct Row {
    std::string symbol;
    int skipped;  ///< calls that are not of hosts, or not the first
    DataType dtype;
    std::string words;
  };
  const Row rows[] = {
      {"ncclGetUniqueId", 1, DataType::F32, "connecting the ranks"},
      {"ncclCommInitRankConfig", 4, DataType::F32, "connecting 2 ranks"},
      {"ncclCommRegister", 0, DataType::F32, "registering the fusion buffer of 2048 bytes"},
      {"ncclReduceScatter", 6, DataType::F32, "reducing 1 tensor(s) of 3001 elements of f32"},
      {"ncclAllGather", 3, DataType::F32, "reducing 1 tensor(s) of 3001 elements of f32"},
      {"ncclSend", 1, DataType::F16, "reducing 1 tensor(s) of 3001 elements of f16"},
      {"ncclGroupEnd", 2, DataType::F16, "reducing 1 tensor(s) of 3001 elements of f16"}};
  for (const Row& row : rows) {
    CAPTURE(row.symbol);
    NcclHosts hosts({0, 1, 1, 0});
    hosts.machine.nccl.fail(row.symbol, nccl::kInternalError, 1, row.skipped);
    hosts.run_to_its_death([&](int rank, Runtime& runtime) {
      ProgramGpu gpu = hosts.gpu(rank);
      GpuSum sum(runtime, gpu, kCount);
      Request request = sum.request();
      request.dtype = row.dtype;
      const Death death = death_of([&] { runtime.submit(std::move(request)).wait(); });
      check_contains(death.text, "NCCL failed while ");
      check_contains(death.text, row.words + ": " + row.symbol);
      if (row.words.find("registering") == std::string::npos) {
        check_contains(death.text, row.symbol + ": the fake says so (3)");
      }
    });
    hosts.machine.check_clean();
    check_recovery(hosts);
  }
}

TEST_CASE("nccl hosts: errors of the GPU on the way through host memory end the group") {
  struct Row {
    std::string symbol;
    int skipped;
  };
  for (const Row& row : {Row{"cuMemHostAlloc", 0}, {"cuMemcpyAsync", 0}, {"cuMemcpyAsync", 9}}) {
    CAPTURE(row.symbol, row.skipped);
    NcclHosts hosts({0, 0, 1, 1});
    std::barrier together(4);
    hosts.run_to_its_death([&](int rank, Runtime& runtime) {
      ProgramGpu gpu = hosts.gpu(rank);
      GpuSum sum(runtime, gpu, kCount);
      together.arrive_and_wait();
      if (rank == 3) {
        const int device = hosts.machine.device(3).index;
        hosts.machine.cuda.fail_on(device, row.symbol, cuda::kInvalidValue, 1, row.skipped);
      }
      const Death death = death_of([&] { sum.start().wait(); });
      check(death.rank == 3, "rank 3 is to blame: " + death.text);
    });
    hosts.machine.check_clean();
    check_recovery(hosts);
  }
}

TEST_CASE("nccl hosts: an error of the CPU's backend between hosts ends the group in its words") {
  const int nth = GENERATE(1, 2, 7);  // shares, results, and those of a later piece
  NcclHosts hosts({0, 0, 1, 1});
  std::barrier together(4);
  hosts.run_to_its_death([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    sum_on_gpu(runtime, gpu, kCount);
    GpuSum sum(runtime, gpu, kCount);
    together.arrive_and_wait();
    if (rank == 2) hosts.faults(2).fail_start(nth, "no route to the other host");
    const Death death = death_of([&] { sum.start().wait(); });
    check_contains(death.text, "no route to the other host");
    check(death.rank == 2, "rank 2 is to blame: " + death.text);
  });
  hosts.machine.check_clean();
  check_recovery(hosts);
}

TEST_CASE("nccl hosts: an NCCL that breaks down within a host is found out before shares cross") {
  NcclHosts hosts({0, 0, 1, 1});
  run_to_breakdown(hosts, nccl::kRemoteError, [](HeldSum& sum) {
    const Death death = sum.death();
    check_contains(death.text,
                   "NCCL failed while reducing 1 tensor(s) of 3001 elements of f32: "
                   "ncclCommGetAsyncError: the fake says so (6)");
    check(sum.is_handed_back(), "the memory was handed back");
  });
  hosts.machine.check_clean();
}

TEST_CASE(
    "nccl hosts: survivors of a rank that dies within a host's part raise, with their memory") {
  NcclHosts hosts({0, 0, 1, 1});
  std::barrier together(4);
  hosts.run_to_its_death([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    HeldSum sum(hosts, runtime, gpu);
    wait_until_held(hosts);
    together.arrive_and_wait();
    if (rank == 3) {
      hosts.group().kill(3);
    } else {
      sum.release();  // but not on the other GPU of the second host
      check(sum.death().rank == 3, "the one that died is named");
      check(sum.is_handed_back(), "the memory was handed back");
    }
    together.arrive_and_wait();
  });
  hosts.machine.check_clean();
  check_recovery(hosts);
}

TEST_CASE("nccl hosts: ranks whose host does not connect give up at the deadline, or with a rank") {
  const bool dies = GENERATE(true, false);
  NcclHosts hosts({0, 0, 1, 1});
  if (!dies) hosts.machine.options.init_timeout_s = 1.0;
  hosts.machine.nccl.lose_a_rank(2);
  hosts.run_to_its_death([&](int rank, Runtime& runtime) {
    ProgramGpu gpu = hosts.gpu(rank);
    GpuSum sum(runtime, gpu, kCount);
    const Work work = sum.start();
    if (dies) wait_for_calls(hosts, "ncclCommInitRankConfig", 8);
    if (dies && rank == 3) return hosts.group().kill(3);
    const Death death = death_of([&] { work.wait(); });
    if (dies) check(death.rank == 3, "the one that died is named");
    if (!dies) check_contains(death.text, "ranks have come in time");
  });
  hosts.machine.check_clean();
}

TEST_CASE("nccl hosts: what an NCCL whose abort hangs may still use is kept") {
  NcclHosts hosts({0, 0, 1, 1});
  hosts.machine.options.abort_bound = 20ms;
  std::promise<void> returns;
  hosts.machine.nccl.hold_aborts(returns.get_future().share());
  run_to_breakdown(hosts, nccl::kSystemError, [](HeldSum& sum) {
    static_cast<void>(sum.death());
    check(!sum.is_handed_back(), "NCCL may still write there: the memory is kept");
  });
  CHECK(hosts.machine.nccl.live().communicators == 8);
  CHECK(hosts.machine.cuda.live().host_allocations > 0);
  returns.set_value();
  while (hosts.machine.nccl.live().communicators > 0) std::this_thread::yield();
  CHECK(hosts.machine.nccl.misuses() == std::vector<std::string>{});
}

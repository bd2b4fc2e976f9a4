// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "python/src/work.h"
#include "ronde/request.h"
#include "ronde/symmetric_heap.h"
#include "ronde/world.h"

namespace ronde::c10d_backend {

using List = std::vector<at::Tensor>;
using Lists = std::vector<List>;
using Counts = std::vector<std::int64_t>;

/// The backend "ronde" of torch.distributed: one group of c10d, which is a world of Ronde's.
///
/// Thread-safety: every member may be called from any thread. Collectives match in the order of
/// the calls, which the program makes the same on all ranks.
class Backend final : public c10d::Backend {
 public:
  /// Meets the other ranks in `store`.
  Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
          c10::intrusive_ptr<Options> options);
  /// Without shutdown() before it, reports to the others that this rank left.
  ~Backend() override;

  const std::string getBackendName() const override { return "ronde"; }
  /// A copy: split_group() writes the time-out and name of the new group into it.
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(*options_);
  }
  bool supportsCoalescing() const override { return true; }
  /// For the calls that follow; every rank calls it.
  void setTimeout(std::chrono::milliseconds timeout) override;

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr broadcast(List& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(List& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(List& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(List& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(List& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(Lists& outputs, List& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(Lists& outputs, List& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(List& outputs, List& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(Lists& outputs, List& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(List& outputs, Lists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(List& outputs, Lists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(List& outputs, List& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, Counts& output_splits,
                        Counts& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(List& outputs, List& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(List& tensors, int peer, int tag) override {
    return start_message(Collective::Send, c10d::OpType::SEND, tensors, peer, tag);
  }
  WorkPtr recv(List& tensors, int peer, int tag) override {
    return start_message(Collective::Recv, c10d::OpType::RECV, tensors, peer, tag);
  }
  WorkPtr recvAnysource(List& tensors, int tag) override {
    return start_message(Collective::Recv, c10d::OpType::RECVANYSOURCE, tensors, kAnyRank, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_for_all) override;

  /// Calls of this thread between the two are started at once; the work of endCoalescing() stands
  /// for all. Forgets what this thread began and, by an exception, never ended.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override { sequence_ = 0; }
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& opts, const int& rank,
                                          const int& size) override;

  /// On the CPU of one host: memory that all ranks have mapped, so that an allreduce of it copies
  /// nothing. The ranks call allocateTensor() together.
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override {
    return state_->heap != nullptr;  // DDP gives the CPU the number 0, that of the first GPU
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  c10d::ErrorType getError() override;
  /// Fails the operations of all ranks.
  void abort() override;
  /// Waits for the other ranks, but not for long, and leaves the group.
  void shutdown() override;

 private:
  /// One call, before it is started.
  struct Call : Started {
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool is_async = true;
    Request request = {};
    List others = {};  ///< tensors that are used, beside inputs and outputs
    std::function<void(const Work&)> check = {};
  };

  static void describe(Call& call, Collective kind, const at::Tensor& output,
                       const at::Tensor& input, Counts shape);
  static void describe_in_place(Call& call, Collective kind, const List& tensors);
  static void describe_exchange(Call& call, const at::Tensor& output, const at::Tensor& input,
                                std::int64_t row, Counts received, Counts sent);
  WorkPtr start(Call call);
  Work submit(Request request, std::chrono::milliseconds timeout);
  Started* coalesced();
  void begin(Started started);
  WorkPtr together(Started started, std::size_t count,
                   const std::function<void(std::size_t)>& call);
  WorkPtr start_message(Collective kind, c10d::OpType type, List& tensors, int peer, int tag);
  Work pass(Collective kind, int peer, std::chrono::milliseconds timeout);
  std::vector<int> late_ranks(std::chrono::milliseconds timeout, bool wait_for_all);
  at::Tensor gather_rows(const at::Tensor& rows, const Counts& counts,
                         std::chrono::milliseconds timeout);
  std::int64_t greatest(std::int64_t mine);

  /// All that a child of fork() leaves alone.
  struct State {
    std::unique_ptr<World> world;
    std::shared_ptr<SymmetricHeap> heap;  ///< null where there is none
    std::shared_ptr<Completions> completions = std::make_shared<Completions>();
  };

  const pid_t process_;
  const c10::intrusive_ptr<Options> options_;
  std::unique_ptr<State> state_;
  ProcessSet set_;  ///< constant once constructed
  std::atomic<std::uint64_t> sequence_{0};
  std::mutex order_;  ///< held while a call is submitted
  /// What each thread has begun to coalesce, innermost last, never empty; guarded by order_.
  std::map<std::thread::id, std::vector<Started>> coalesced_;
};

}  // namespace ronde::c10d_backend

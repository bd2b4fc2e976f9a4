// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "ronde/work.h"

namespace ronde::c10d_backend {

/// Tensors whose memory an operation uses. Where the last owner lacks the GIL, they are kept until
/// bury_tensors() is called next: to release a tensor may take it, which the engine must not await.
using Tensors = std::shared_ptr<std::vector<at::Tensor>>;

/// Returns such an owner of `tensors`.
Tensors keep(std::vector<at::Tensor> tensors);

/// Releases what was left. Called on the program's threads alone: the engine must not await the
/// GIL, and a thread of a group that awaits it while Python ends would end the program by abort().
void bury_tensors();

/// Returns PyTorch's error for one of Ronde's, with the same text.
c10::DistBackendError torch_error(const std::exception& error);

/// Waits for `work` as StartedWork::wait() does, and throws the engine's error.
void await(const Work& work);

class Completions;

/// One operation of the engine.
struct Part {
  Work work;
  std::function<void(const Work&)> check = {};  ///< after success; throws if the result is wrong
};

/// What one call of c10d has started.
struct Started {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  ///< for the profiler
  std::vector<Part> parts = {};
  std::vector<at::Tensor> inputs = {};   ///< for the profiler
  std::vector<at::Tensor> outputs = {};  ///< the result
  Tensors tensors = {};                  ///< what the parts use
  std::uint64_t sequence = 0;
};

/// The handle of one call.
///
/// Thread-safety: every member may be called from any thread.
class StartedWork final : public c10d::Work {
 public:
  StartedWork(int rank, Started started, std::shared_ptr<Completions> completions);

  bool isCompleted() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// Waits without the GIL. On Python's main thread a signal's handler may end it (Ctrl-C).
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return started_.sequence; }

 private:
  friend class Completions;
  /// Records the end, once all parts are done.
  void settle();
  void complete_future();
  void wait_for_parts(std::chrono::milliseconds timeout);

  Started started_;  ///< constant
  const std::shared_ptr<Completions> completions_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  ///< guarded by mutex_
  bool future_completed_ = false;                   ///< guarded by mutex_
};

/// Completes the futures of one group, on threads of its own: callbacks may take the GIL, and wait
/// for other futures of the group, in which case another thread takes over.
///
/// Thread-safety: every member may be called from any thread.
class Completions : public std::enable_shared_from_this<Completions> {
 public:
  /// Completes the future of `work` once its parts are done.
  void add(c10::intrusive_ptr<StartedWork> work);
  /// No more are added. Threads end when the last future is completed.
  void close();

 private:
  void done(c10::intrusive_ptr<StartedWork> work);
  void start_thread();
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<StartedWork>> done_;  ///< guarded by mutex_
  std::size_t pending_ = 0;  ///< added, and not taken from done_; guarded by mutex_
  int idle_ = 0;             ///< threads; guarded by mutex_
  bool serves_ = false;      ///< whether there are threads; guarded by mutex_
  bool closed_ = false;      ///< guarded by mutex_
};

}  // namespace ronde::c10d_backend

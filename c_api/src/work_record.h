// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/ronde_c.h"
#include "ronde/work.h"

namespace ronde::c {

/// The result of an operation, written while it runs and read once it is done.
class Result {
 public:
  Result(DataType type, void* memory) : dtype(type), data(memory) {}

  /// Allocates memory for a result of this shape. Returns null without elements.
  void* allocate(const std::vector<std::int64_t>& of_shape);

  const DataType dtype;
  void* data;
  std::vector<std::int64_t> shape;

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(void* memory) const noexcept { ::operator delete(memory, kAlignment); }
  };

  std::unique_ptr<void, Free> owned_;
};

/// The object behind a handle of the C interface: an operation, or a group of them. While its group
/// is open it has no result; then it gets one once: started, or failed.
///
/// Thread-safety: all members may be called from any thread.
class WorkRecord : public std::enable_shared_from_this<WorkRecord> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// A group has no `kind`. `result` may be null.
  WorkRecord(std::optional<Collective> kind, std::shared_ptr<Result> result)
      : kind_(kind), result_(std::move(result)) {}
  /// Logs an error that was never returned, where fail() was given a name.
  ~WorkRecord();

  void start(std::vector<Work> works) noexcept { set_result(std::move(works), nullptr, {}); }
  /// `name` is for the log; empty where a call reports the error.
  void fail(std::exception_ptr error, std::string name) noexcept {
    set_result({}, std::move(error), std::move(name));
  }

  bool done() const;
  /// Returns false if it is not done at `deadline` (none: waits for ever). Throws the operation's
  /// error.
  bool wait(const std::optional<TimePoint>& deadline) const;
  /// Calls Work::wait_on() of all. Throws the error of one that failed by then.
  void wait_on(void* stream) const;
  /// Calls `callback`, which must not throw, once it is done.
  using Callback = std::function<void(const WorkRecord&)>;
  void on_done(Callback callback);
  /// Calls `fn` with the status, as a callback of the program.
  void invoke(ronde_done_fn fn, void* context) const noexcept;
  /// Returns TimeoutError::missing_ranks() of its error. Throws Failure while it is not done.
  std::vector<int> missing_ranks() const;

  /// Returns the operation. Throws Failure unless it has succeeded and is of this kind.
  const Work& finished(Collective kind) const;
  const Result& result() const;

 private:
  void set_result(std::vector<Work> works, std::exception_ptr error, std::string name) noexcept;
  void expect_result() const;
  void expect_done() const;
  void expect_success() const;
  bool all_done() const;
  void rethrow_first_error() const;
  void watch(const Callback& callback) const;

  const std::optional<Collective> kind_;
  const std::shared_ptr<Result> result_;

  // Constant once it has a result.
  std::vector<Work> works_;
  std::exception_ptr error_;  ///< instead of works
  std::string name_;          ///< with an error that no call reports
  std::atomic<bool> has_result_{false};

  mutable std::atomic<bool> error_read_{false};

  std::mutex mutex_;
  std::vector<Callback> callbacks_;  ///< guarded by mutex_; until there is a result
};

}  // namespace ronde::c

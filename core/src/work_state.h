// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ronde/log.h"

namespace ronde {

/// What a waiting caller tells the engine: do not gather any longer, somebody waits.
class FlushSignal {
 public:
  virtual ~FlushSignal() = default;
  virtual void flush() noexcept = 0;
};

/// The shared part of all handles to one operation. Completes exactly once.
///
/// Thread-safety: every member may be called from any thread.
class WorkState {
 public:
  /// `name` is for texts. `log` takes an error that nobody read.
  WorkState(std::string name, std::weak_ptr<FlushSignal> engine, std::shared_ptr<Logger> log);
  ~WorkState();
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;

  /// Ends the operation: with success if `error` is null.
  void complete(std::exception_ptr error, bool contributed = true);

  /// Before complete(): what received_splits() will give.
  void set_received_splits(std::vector<std::int64_t> rows);

  bool done() const;
  bool contributed() const;
  std::exception_ptr error();
  std::vector<std::int64_t> received_splits();
  /// Waits until `deadline` (null: for ever); throws the error of a failed operation.
  bool wait_until(const std::chrono::steady_clock::time_point* deadline);
  void on_done(std::function<void()> callback);

  const std::string& name() const noexcept { return name_; }

 private:
  // Constant after construction.
  const std::string name_;
  const std::weak_ptr<FlushSignal> engine_;
  const std::shared_ptr<Logger> log_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  bool contributed_ = true;
  bool error_read_ = false;
  std::exception_ptr error_;
  std::vector<std::int64_t> received_splits_;
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace ronde

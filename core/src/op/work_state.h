// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/src/base/caller.h"
#include "core/src/base/monotonic_clock.h"
#include "core/src/op/op_spec.h"
#include "ronde/device.h"
#include "ronde/log.h"

namespace ronde {

class WorkState;

/// The progress of an operation. On the CPU it is never Queued.
enum class Stage : std::uint8_t {
  Pending,
  Queued,  ///< on a device, which will have the result
  Done,
};

/// The engine, as a thread that waits for one of its operations sees it.
class WaitHelper {
 public:
  virtual ~WaitHelper() = default;

  /// The `deadline` of a thread that only asks whether an operation is done.
  static constexpr TimePoint kAsks = TimePoint::min();

  /// Returns once `work` has reached `goal`, or `deadline` has passed. The engine then delays no
  /// operation, and may use this thread for its work; the next submission may depend on the result.
  /// kAsks: it no longer delays `work`, and returns at once.
  virtual void help(WorkState& work, Stage goal, TimePoint deadline) noexcept = 0;

  /// Called when the program has read the error of an operation.
  virtual void on_error_read(const std::exception_ptr& error) noexcept = 0;
};

/// The state that all handles to one operation share. Completes exactly once, and may be queued
/// once before.
///
/// Thread-safety: every member may be called from any thread, except set_received_splits(),
/// set_source(), set_last_rank() and set_digests_differ(): the loop calls these before it publishes
/// the stage.
class WorkState {
 public:
  /// `name` is for texts. An error that nobody read is written to `log`.
  WorkState(std::string name, std::weak_ptr<WaitHelper> engine, std::shared_ptr<Logger> log);
  /// For an operation, whose name is composed only where a text needs it.
  WorkState(SpecPtr spec, std::weak_ptr<WaitHelper> engine, std::shared_ptr<Logger> log);
  ~WorkState();
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;

  /// Lets a wait on a stream return: the device reaches `event` once it has the result.
  void set_queued(std::shared_ptr<const DeviceEvent> event);

  /// Ends the operation: with success if `error` is null.
  void complete(std::exception_ptr error, bool contributed = true);

  /// Set the results. The loop calls them before set_queued() and complete(), which publish them.
  /// @{
  void set_received_splits(std::vector<std::int64_t> rows) { received_splits_ = std::move(rows); }
  void set_source(int rank) { source_ = rank; }
  void set_last_rank(int rank) { last_rank_ = rank; }
  void set_digests_differ() { digests_differ_ = true; }
  /// Sets Submission::number, before any thread can wait for it. `waits`: its caller waits from the
  /// start.
  void set_number(std::uint64_t number, bool waits) noexcept {
    number_ = number;
    waits_.store(waits, std::memory_order_relaxed);
  }
  /// @}

  Stage stage() const noexcept { return stage_.load(std::memory_order_acquire); }
  bool done() const noexcept { return stage() == Stage::Done; }
  /// Returns done() to the program. An operation that it asks for is no longer delayed.
  bool ask() noexcept;
  bool contributed() const;
  bool digests_agree() const noexcept { return stage() == Stage::Pending || !digests_differ_; }
  std::exception_ptr error();
  /// Throw unless the operation has succeeded.
  /// @{
  std::vector<std::int64_t> received_splits() {
    return expect_success("received_splits()"), received_splits_;
  }
  int source() { return expect_success("source()"), source_; }
  int last_rank() { return expect_success("last_rank()"), last_rank_; }
  /// @}
  /// Waits until the operation has reached `goal`, or `deadline` passes.
  void wait(Stage goal, TimePoint deadline);
  /// Waits until the operation is done, or returns false when `deadline` passes. Throws the error
  /// of a failed operation.
  bool wait_until(TimePoint deadline);
  /// As Work::wait_on().
  void wait_on(void* stream);
  void on_done(std::function<void()> callback);
  /// Waits as wait() does, but leaves the engine to other threads.
  void block(Stage goal, TimePoint deadline);

  std::uint64_t number() const noexcept { return number_; }
  /// Returns true once if its caller waits from the start: that wait is the first one.
  bool pop_first_wait() noexcept {
    return waits_.load(std::memory_order_relaxed) &&
           waits_.exchange(false, std::memory_order_relaxed);
  }
  std::string name() const { return spec_ ? display_name(*spec_, spec_->name) : *name_; }

  /// Throws UsageError if `function` is called in a child of fork(): Note [After fork].
  void expect_own_process(const char* function) const;

  /// Returns whether a thread waits for it, or has. Set before WaitHelper::help is called.
  bool is_awaited() const noexcept { return awaited_.load(std::memory_order_relaxed); }

  /// Returns the bucket of a frozen schedule in which the operation waits.
  std::optional<std::size_t> bucket() const noexcept {
    const std::size_t bucket = bucket_.load(std::memory_order_relaxed);
    return bucket > 0 ? std::optional(bucket - 1) : std::nullopt;
  }
  void set_bucket(std::optional<std::size_t> bucket) noexcept {
    bucket_.store(bucket ? *bucket + 1 : 0, std::memory_order_relaxed);
  }

 private:
  /// Throws unless the operation has succeeded; `asked` is the function that was called.
  void expect_success(const char* asked);

  // Constant after construction.
  const std::unique_ptr<const std::string> name_;  ///< null where spec_ names the work
  const SpecPtr spec_;
  const std::weak_ptr<WaitHelper> engine_;
  const std::shared_ptr<Logger> log_;
  const int fork_depth_ = fork_depth();

  std::uint64_t number_ = 0;  ///< constant once it is submitted

  // Written before stage_ is published, constant from then on.
  std::vector<std::int64_t> received_splits_;
  int source_ = -1;
  int last_rank_ = -1;
  bool digests_differ_ = false;

  std::atomic<std::size_t> bucket_{0};  ///< plus one
  /// Written under mutex_, after what it stands for.
  std::atomic<Stage> stage_{Stage::Pending};
  std::atomic<bool> awaited_{false};
  std::atomic<bool> waits_{false};  ///< and pop_first_wait() has not been called

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool contributed_ = true;
  bool error_read_ = false;
  std::shared_ptr<const DeviceEvent> event_;  ///< while it is queued, and after
  std::exception_ptr error_;
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace ronde

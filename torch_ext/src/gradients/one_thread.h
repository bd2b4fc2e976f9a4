// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace ronde::detail {

/// Refuses a thread that uses an optimizer while another thread does. LibTorch lets threads train
/// one model without locks (Hogwild); their gradients and steps would mix here.
///
/// Note [One thread at a time]
/// A thread uses an optimizer during a call, and during a backward pass that reaches one of its
/// parameters. Autograd runs the CPU's part of a pass on the thread that called backward(), but a
/// GPU's part on a thread of its own, which is therefore not checked. Calls own the token of the
/// thread's use, and so does a final callback of the pass: releasing it ends the pass, also after a
/// failure.
///
/// Thread-safety: every member may be called from any thread.
class OneThread {
 public:
  using Use = std::shared_ptr<const void>;

  /// `subject` begins the texts of errors.
  explicit OneThread(std::string subject) : subject_(std::move(subject)) {}

  /// Returns the token of this thread's use, which a call of the optimizer holds; the same within
  /// another use. Throws UsageError while another thread uses the optimizer.
  [[nodiscard]] Use use();

  /// To be called on the thread of a backward pass that has reached a parameter on the CPU. Throws
  /// UsageError while another thread uses the optimizer.
  void enter_backward();

 private:
  using Passing = std::atomic<std::thread::id>;

  const std::string subject_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::weak_ptr<const void> use_;
  std::thread::id user_;            ///< while `use_` has not expired
  std::weak_ptr<const void> pass_;  ///< expired: no backward pass is in progress

  /// The thread of the pass in progress, so that later parameters of the pass skip the lock.
  const std::shared_ptr<Passing> passing_ = std::make_shared<Passing>();
};

}  // namespace ronde::detail

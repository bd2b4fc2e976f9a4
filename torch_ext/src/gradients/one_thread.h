// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace ronde::detail {

/// Refuses a thread that uses an optimizer while another one does. LibTorch lets threads train one
/// model without locks (Hogwild); here their gradients and steps would mix.
///
/// Note [One thread at a time]
/// A thread uses an optimizer during a call, and during a backward pass that reaches one of its
/// parameters. Autograd runs the CPU's part of a pass on the thread that called backward(). It runs
/// a GPU's part on a thread of its own, which says nothing about the caller and is not checked.
/// Calls own the token of the thread's use, and so does a final callback of the pass: the pass is
/// over once that is released, also after a failure.
///
/// Thread-safety: every member may be called from any thread.
class OneThread {
  using Use = std::shared_ptr<const void>;

 public:
  /// `subject` begins the texts of errors.
  explicit OneThread(std::string subject) : subject_(std::move(subject)) {}

  /// A call of the optimizer. Throws UsageError while another thread uses it.
  class Call {
   public:
    explicit Call(OneThread& of) : use_(of.use()) {}

   private:
    const Use use_;
  };

  /// A backward pass has reached a parameter, on the CPU. Called on the thread that runs the pass;
  /// throws UsageError while another thread uses the optimizer.
  void enter_backward();

 private:
  using Passing = std::atomic<std::thread::id>;

  /// The token of this thread's use: the same one within another use.
  Use use();

  const std::string subject_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::weak_ptr<const void> use_;
  std::thread::id user_;            ///< while `use_` has not expired
  std::weak_ptr<const void> pass_;  ///< expired: no backward pass is in progress

  /// The thread of the pass in progress, which need not ask for more with each parameter.
  const std::shared_ptr<Passing> passing_ = std::make_shared<Passing>();
};

}  // namespace ronde::detail

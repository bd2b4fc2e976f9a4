// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/one_thread.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {

OneThread::Use OneThread::use() {
  const std::lock_guard lock(mutex_);
  const std::thread::id here = std::this_thread::get_id();
  Use present = use_.lock();
  if (present && user_ != here) {
    throw UsageError(
        rank_prefix() + subject_ + ": two threads use it at once: " +
        (pass_.expired() ? "another thread is in a call of it"
                         : "backward() still runs on another thread") +
        ". Gradients and steps of several threads cannot be told apart: run backward() and the "
        "optimizer on one thread, and train with more ranks in place of more threads");
  }
  if (present) return present;
  present = std::make_shared<char>();
  use_ = present;
  user_ = here;
  return present;
}

/// Note [One thread at a time].
void OneThread::enter_backward() {
  const std::thread::id here = std::this_thread::get_id();
  if (passing_->load(std::memory_order_relaxed) == here) return;
  struct Pass {
    const Use use;
    const std::shared_ptr<Passing> passing;
    ~Pass() { passing->store({}, std::memory_order_relaxed); }
  };
  Use mine = use();
  const std::lock_guard lock(mutex_);
  if (!pass_.expired()) return;
  auto pass = std::make_shared<Pass>(std::move(mine), passing_);
  passing_->store(here, std::memory_order_relaxed);
  pass_ = pass;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [pass = std::move(pass)]() mutable { pass.reset(); });
}

}  // namespace ronde::detail

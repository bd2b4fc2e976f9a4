// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/work.h"

#include <algorithm>

#include "ronde/error.h"
#include "tensor_request.h"

namespace ronde {

at::Tensor TensorWork::wait() const {
  Work::wait();
  return operation_ ? operation_->result : at::Tensor();
}

at::Tensor TensorWork::wait_host() const {
  return wait();
}

at::Tensor TensorWork::result() const {
  if (!done()) {
    throw UsageError(detail::rank_prefix() +
                     "TensorWork::result() was called while the operation is pending. Call wait() "
                     "first, or ask done()");
  }
  return wait();
}

bool GroupWork::done() const {
  return std::all_of(works_.begin(), works_.end(), [](const Work& work) { return work.done(); });
}

std::vector<at::Tensor> GroupWork::wait() const {
  // All are waited for, also after an error, so that no tensor is in use afterwards.
  std::vector<at::Tensor> results;
  std::exception_ptr first_error;
  for (const TensorWork& work : works_) {
    try {
      results.push_back(work.wait());
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
  return results;
}

bool GroupWork::wait_for(std::chrono::nanoseconds duration) const {
  // Of an error wait() tells, once all are done.
  const auto begin = std::chrono::steady_clock::now();
  for (const TensorWork& work : works_) {
    const auto passed = std::chrono::steady_clock::now() - begin;
    try {
      if (!work.wait_for(std::max(duration - passed, std::chrono::nanoseconds(0)))) return false;
    } catch (...) {
      continue;
    }
  }
  wait();
  return true;
}

std::exception_ptr GroupWork::error() const {
  if (!done()) return nullptr;
  std::exception_ptr first_error;
  for (const TensorWork& work : works_) {
    const std::exception_ptr error = work.error();
    if (!first_error) first_error = error;
  }
  return first_error;
}

std::vector<at::Tensor> GroupWork::results() const {
  if (done()) return wait();
  throw UsageError(detail::rank_prefix() +
                   "GroupWork::results() was called while the group is pending. Call wait() first, "
                   "or ask done()");
}

}  // namespace ronde

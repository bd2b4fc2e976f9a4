// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/work.h"

#include <algorithm>
#include <optional>

#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {

at::Tensor TensorWork::wait() const {
  if (!operation_ || !operation_->stream) return wait_host();
  const std::optional<c10::Stream> stream = detail::current_stream(operation_->stream->device());
  wait_on(detail::native_stream(stream));
  const at::Tensor& result = operation_->result;
  // The allocator that gave the memory to one stream must know of another one that uses it.
  if (result.defined() && *stream != *operation_->stream) result.record_stream(*stream);
  return result;
}

at::Tensor TensorWork::wait_host() const {
  Work::wait();
  return operation_ ? operation_->result : at::Tensor();
}

at::Tensor TensorWork::result() const {
  if (!done()) {
    throw UsageError(detail::rank_prefix() +
                     "TensorWork::result() was called while the operation is pending. Call wait() "
                     "first, or ask done()");
  }
  return wait_host();
}

bool GroupWork::done() const {
  return std::all_of(works_.begin(), works_.end(), [](const Work& work) { return work.done(); });
}

namespace {

/// Waits for all, even after an error, so that no tensor is in use afterwards.
template <typename Wait>
std::vector<at::Tensor> results_of(const std::vector<TensorWork>& works, Wait wait) {
  std::vector<at::Tensor> results;
  detail::FirstError first_error;
  for (const TensorWork& work : works) {
    first_error.attempt([&] { results.push_back(wait(work)); });
  }
  first_error.rethrow();
  return results;
}

}  // namespace

std::vector<at::Tensor> GroupWork::wait() const {
  return results_of(works_, [](const TensorWork& work) { return work.wait(); });
}

std::vector<at::Tensor> GroupWork::wait_host() const {
  return results_of(works_, [](const TensorWork& work) { return work.wait_host(); });
}

bool GroupWork::wait_for(std::chrono::nanoseconds duration) const {
  // wait_host() throws an error, once all are done.
  const auto begin = std::chrono::steady_clock::now();
  for (const TensorWork& work : works_) {
    const auto passed = std::chrono::steady_clock::now() - begin;
    try {
      if (!work.wait_for(std::max(duration - passed, std::chrono::nanoseconds(0)))) return false;
    } catch (...) {
      continue;
    }
  }
  wait_host();
  return true;
}

std::exception_ptr GroupWork::error() const {
  if (!done()) return nullptr;
  detail::FirstError first_error;
  for (const TensorWork& work : works_) first_error.record(work.error());
  return first_error.get();
}

std::vector<at::Tensor> GroupWork::results() const {
  if (done()) return wait_host();
  throw UsageError(detail::rank_prefix() +
                   "GroupWork::results() was called while the group is pending. Call wait() first, "
                   "or ask done()");
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ronde/dtype.h"
#include "ronde/log.h"
#include "ronde/options.h"
#include "ronde/persistent.h"
#include "ronde/request.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// State that a handle shares with its operation.
struct TensorOperation {
  /// Written before the work is done, or queued on a GPU; read after it.
  at::Tensor result;
  /// The stream in which the tensors are ready and the memory of the result was allocated; none on
  /// the CPU. Written before the operation is submitted.
  std::optional<c10::Stream> stream = {};
};

/// Throws UsageError, its text beginning with `what`, unless Ronde can move `tensor`.
void check_tensor(const std::string& what, const at::Tensor& tensor);

/// Throws as check_tensor(), and UsageError if elements of `tensor` share memory.
void check_writable(const std::string& what, const at::Tensor& tensor);

/// Throws UsageError for dtypes of a checked tensor that are only moved, and ops that complex
/// numbers do not have.
void check_reducible(const std::string& what, const at::Tensor& tensor, ReduceOp op);

/// "float32 [2, 3] on cpu", or "undefined".
std::string describe(const at::Tensor& tensor);

/// "f32"
std::string describe_type(at::ScalarType type);

/// "[2, 3]"
std::string describe_shape(at::IntArrayRef sizes);

/// "rank 2: ", or "rank 2 of world 'actor': ", with which texts of errors begin. Empty where the
/// world of `set` does not exist.
std::string rank_prefix(ProcessSet set = kGlobalSet);

/// "rank 2: ronde::allreduce("x")", with which texts about a call begin.
std::string caller(std::string_view function, const std::string& name, ProcessSet set);
template <typename Options>
std::string caller(std::string_view function, const Options& options) {
  return caller(function, options.name, options.process_set);
}
/// "rank 2: ronde::grouped_allreduce("x"), tensor 3".
template <typename Options>
std::string caller(std::string_view function, const Options& options, std::size_t index) {
  return caller(function, options) + ", tensor " + std::to_string(index);
}

/// Returns whether elements of a strided tensor may share memory.
bool may_overlap_itself(const at::Tensor& tensor);
/// Narrows dimensions of stride 0 (expanded ones) to one element, so that memory occurs once.
at::Tensor without_repeats(at::Tensor tensor);
/// Copies `values` into `tensor`, of the same shape, writing each place in memory once. Autograd
/// sees only the tensor's version change.
void write_values(const at::Tensor& tensor, const at::Tensor& values);

/// Returns the values of `tensor` detached and row-major: a copy where they are not.
at::Tensor plain_values(const at::Tensor& tensor);

/// Returns none for types that Ronde does not have: Note [Dtypes that Ronde does not have].
std::optional<DataType> data_type_of(at::ScalarType type) noexcept;
Device native_device(const at::Tensor& tensor);

/// Makes a request of this kind with the dtype, shape and device of a checked tensor.
Request request_for(Collective kind, const at::Tensor& tensor);

/// Makes a request from a checked tensor and the fields that these options have.
template <typename Options>
Request request_for(Collective kind, const at::Tensor& tensor, const Options& options) {
  Request request = request_for(kind, tensor);
  if constexpr (requires { options.name; }) request.name = options.name;
  if constexpr (requires { options.op; }) {
    request.op = options.op;
    request.prescale = options.prescale;
    request.postscale = options.postscale;
  }
  if constexpr (requires { options.wire_dtype; }) request.wire_dtype = options.wire_dtype;
  if constexpr (requires { options.root; }) request.root = options.root;
  if constexpr (requires { options.peer; }) {
    request.peer = options.peer;
    request.tag = options.tag;
  }
  request.set = options.process_set;
  request.timeout = options.timeout;
  return request;
}

/// Sets Request::caller_waits of the requests that this thread makes in its scope: the waiting
/// forms call the async forms, and wait.
class CallerWaits {
 public:
  CallerWaits() { here_ = true; }
  ~CallerWaits() { here_ = false; }
  CallerWaits(const CallerWaits&) = delete;
  CallerWaits& operator=(const CallerWaits&) = delete;

  static bool here() noexcept { return here_; }

 private:
  static inline thread_local bool here_ = false;
};

/// A request with memory, yet to be submitted. On a GPU its tensors are ready in the stream that
/// was current when it was made.
struct Prepared {
  Request request;
  std::shared_ptr<TensorOperation> operation;
  /// If not empty, the operation to start with the data of `request`; not for groups.
  PersistentOp persistent = {};
};

/// Prepares an operation into a new tensor of the same shape. `reads`: it reads the tensor's
/// values.
Prepared prepare_out_of_place(Request request, const at::Tensor& tensor, bool reads);
/// Prepares one into memory that is allocated once the shape of the result is known.
Prepared prepare_allocating(Request request, const at::Tensor& tensor);
/// Prepares one in place; mark_written() must follow. Memory that is not row-major is reduced in a
/// copy and written back by Request::finish, so that the tensor has the result even if nobody
/// waits.
Prepared prepare_in_place(Request request, const at::Tensor& tensor, bool reads);
/// Prepares one without a result.
Prepared prepare_sending(Request request, const at::Tensor& tensor);

/// Returns whether the tensor can be reduced where it lies.
bool is_row_major(const at::Tensor& tensor);
/// Prepares a start of a persistent operation in place in a row-major tensor.
Prepared prepare_again(const PersistentOp& persistent, const at::Tensor& tensor, bool contributes);

/// Bumps the tensor's version for autograd, once the operation that changes it is submitted.
void mark_written(const at::Tensor& tensor);

TensorWork start(Prepared prepared);
/// Starts several operations as a group, all or none. Those on the CPU beside others on a GPU form
/// a group of their own, as a group has one kind of device.
std::vector<TensorWork> start_together(std::vector<Prepared> prepared);
TensorWork start_in_place(Request request, const at::Tensor& tensor, bool reads);
/// Starts an allreduce in place to the elementwise maximum of all ranks' values.
TensorWork start_max(const std::string& name, const at::Tensor& values, ProcessSet set,
                     std::chrono::nanoseconds timeout);

/// Returns the current stream of this thread on `device`; none on the CPU. In a hook of autograd
/// it is the one in which backward has computed the hook's arguments.
std::optional<c10::Stream> current_stream(c10::Device device);

/// Returns the handle for Request::stream and Work::wait_on(); null without a stream. Throws
/// UsageError if this LibTorch does not expose it.
void* native_stream(const std::optional<c10::Stream>& stream);

/// Keeps the first exception of several parts that must all run, as other ranks wait for each.
///
/// Thread-safety: none.
class FirstError {
 public:
  /// Runs `part`, and records what it throws.
  template <typename Part>
  void attempt(const Part& part) noexcept {
    try {
      part();
    } catch (...) {
      record(std::current_exception());
    }
  }
  void record(std::exception_ptr error) noexcept {
    if (!error_) error_ = std::move(error);
  }

  explicit operator bool() const noexcept { return error_ != nullptr; }
  const std::exception_ptr& get() const noexcept { return error_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

/// Returns the log of this rank in the world of `set`.
Logger rank_log(ProcessSet set);

}  // namespace ronde::detail

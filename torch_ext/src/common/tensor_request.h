// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/dtype.h"
#include "ronde/options.h"
#include "ronde/persistent.h"
#include "ronde/request.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

/// State that the handle shares with the operation.
struct TensorOperation {
  /// Written before the work is done, or queued on a GPU; read after it.
  at::Tensor result;
  /// In which the tensors are ready, and the memory of the result was made; none on the CPU.
  /// Written before the operation is submitted.
  std::optional<c10::Stream> stream = {};
};

/// Throws UsageError, its text beginning with `what`, unless Ronde can move `tensor`.
void check_tensor(const std::string& what, const at::Tensor& tensor);

/// As check_tensor, and refuses memory that overlaps itself.
void check_writable(const std::string& what, const at::Tensor& tensor);

/// Refuses dtypes of a checked tensor that are only moved, and ops that complex numbers do not
/// have.
void check_reducible(const std::string& what, const at::Tensor& tensor, ReduceOp op);

/// "float32 [2, 3] on cpu", or "undefined".
std::string describe(const at::Tensor& tensor);

/// "f32"
std::string describe_type(at::ScalarType type);

/// "[2, 3]"
std::string describe_shape(at::IntArrayRef sizes);

/// "rank 2: ", or "rank 2 of world 'actor': ": how this library's own texts begin. Empty where the
/// world of `set` does not live.
std::string rank_prefix(ProcessSet set = kGlobalSet);

/// "rank 2: ronde::allreduce("x")": how the texts about a call begin.
std::string caller(std::string_view function, const std::string& name, ProcessSet set);
/// The same of a tensor of a group: "rank 2: ronde::grouped_allreduce("x"), tensor 3".
std::string caller(std::string_view function, const std::string& name, ProcessSet set,
                   std::size_t index);

/// Whether several elements of a strided tensor may share one place in memory.
bool may_overlap_itself(const at::Tensor& tensor);
/// Each place in memory once, where dimensions of stride 0 (expanded ones) repeat it.
at::Tensor without_repeats(at::Tensor tensor);
/// Copies `values`, which have its shape, into `tensor`: each place in memory once, and unseen by
/// autograd, but for the tensor's version.
void write_values(const at::Tensor& tensor, const at::Tensor& values);

/// The values of `tensor` in memory that is row-major, without autograd's view of them: a copy
/// where they are not.
at::Tensor plain_values(const at::Tensor& tensor);

/// None for types that Ronde does not have: Note [Dtypes that Ronde does not have].
std::optional<DataType> data_type_of(at::ScalarType type) noexcept;
Device native_device(const at::Tensor& tensor);

/// A request with the kind, and the dtype, shape and device of a checked tensor.
Request request_for(Collective kind, const at::Tensor& tensor);

/// Makes a request from a checked tensor and options: each struct of options has some of the
/// fields.
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

/// While one lives, the requests that this thread makes are waited for at once
/// (Request::caller_waits): the forms that wait are those that do not, and a wait.
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

/// A request with memory, yet to be submitted. On a GPU its tensors are ready in the stream that is
/// current where it is made.
struct Prepared {
  Request request;
  std::shared_ptr<TensorOperation> operation;
  /// Not empty: starts it, with what is in the request; it is not for a group.
  PersistentOp persistent = {};
};

/// Into a new tensor of the same shape. `reads`: the tensor's values count.
Prepared prepare_out_of_place(Request request, const at::Tensor& tensor, bool reads);
/// Into memory that is made once the shape of the result is known.
Prepared prepare_allocating(Request request, const at::Tensor& tensor);
/// In place. Memory that is not row-major is reduced in a copy and written back by Request::finish,
/// so that the tensor has the result even if nobody waits. To be followed by note_written().
Prepared prepare_in_place(Request request, const at::Tensor& tensor, bool reads);
/// Without a result.
Prepared prepare_sending(Request request, const at::Tensor& tensor);

/// Whether it can be reduced where it is.
bool is_row_major(const at::Tensor& tensor);
/// In place in a row-major tensor, by an operation that was prepared for such a one.
Prepared prepare_again(const PersistentOp& persistent, const at::Tensor& tensor, bool contributes);

/// For autograd, once what changes `tensor` has been submitted.
void note_written(const at::Tensor& tensor);

TensorWork start(Prepared prepared);
/// One by itself, several as a group: all or none. On a GPU, what is on the CPU beside them goes by
/// itself, as a group is of one kind of device.
std::vector<TensorWork> start_together(std::vector<Prepared> prepared);
TensorWork start_in_place(Request request, const at::Tensor& tensor, bool reads);
/// Starts an allreduce that leaves the greatest of all ranks' elements in `values`, by place.
TensorWork start_max(const std::string& name, const at::Tensor& values, ProcessSet set,
                     std::chrono::nanoseconds timeout);

}  // namespace ronde::detail

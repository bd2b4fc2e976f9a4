// SPDX-License-Identifier: Apache-2.0
#include "tensor_request.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autograd.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"

namespace ronde {
namespace detail {
namespace {

std::optional<DataType> data_type_of(at::ScalarType type) noexcept {
  switch (type) {
    case at::kByte:
      return DataType::U8;
    case at::kChar:
      return DataType::I8;
    case at::kShort:
      return DataType::I16;
    case at::kInt:
      return DataType::I32;
    case at::kLong:
      return DataType::I64;
    case at::kHalf:
      return DataType::F16;
    case at::kBFloat16:
      return DataType::BF16;
    case at::kFloat:
      return DataType::F32;
    case at::kDouble:
      return DataType::F64;
    case at::kBool:
      return DataType::Bool;
    default:
      return std::nullopt;
  }
}

Device native_device(const at::Tensor& tensor) {
  if (tensor.is_cuda()) return {.kind = DeviceKind::Cuda, .index = tensor.get_device()};
  return {};
}

// Why Ronde cannot move `tensor` and what helps, or an empty text. Asked in an order in which no
// question fails: an undefined tensor has no layout, a nested one no sizes.
std::string objection(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "the tensor is undefined. Give it a value first (a parameter that backward did not "
           "reach has an undefined grad())";
  }
  if (tensor.is_meta()) {
    return "the tensor is a meta tensor, which has no data. Move it to a device with "
           "empty_like(tensor, device) first";
  }
  if (tensor.is_nested()) return "the tensor is nested. Pass its parts, or a padded copy";
  if (tensor.layout() != at::kStrided) {
    return "the tensor is not dense (layout " + c10::str(tensor.layout()) +
           "). Call to_dense() first";
  }
  if (tensor.is_quantized()) return "the tensor is quantised. Call dequantize() first";
  if (tensor.is_complex()) {
    return "the tensor is complex. Pass torch::view_as_real(tensor) (exact for sums and averages)";
  }
  if (!data_type_of(tensor.scalar_type())) {
    return "the dtype " + std::string(c10::toString(tensor.scalar_type())) +
           " is not supported. Convert it: uint8, int8, int16, int32, int64, float16, bfloat16, "
           "float32, float64 and bool are";
  }
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    return "tensors on " + tensor.device().str() + " are not supported. Call cpu() first";
  }
  if (!tensor.has_storage()) return "the tensor has no memory of its own. Call clone() first";
  return {};
}

bool is_root(const BroadcastOptions& options) {
  return rank_in(options.process_set) == options.root;
}

// Nothing records what is changed after the call has returned.
void refuse_recorded(const std::string& function, const std::string& name,
                     const at::Tensor& tensor) {
  if (!is_recorded_in_place(tensor)) return;
  throw UsageError(caller(function + "_async_", name) + " (" + describe(tensor) +
                   "): autograd computed this tensor and would not know that it changes. Call " +
                   function + "_(), which waits, or pass tensor.detach()");
}

// Autograd's view of a tensor must neither stay alive nor be asked in an operation on raw memory.
at::Tensor readable(const at::Tensor& tensor) {
  return tensor.detach().resolve_neg().contiguous();
}

bool is_row_major(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg();
}

// Not empty_like: it keeps the memory format, and a result is row-major.
at::Tensor empty_result(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, at::TensorOptions().dtype(like.scalar_type()).device(like.device()));
}

// While one lives, the requests that this thread makes are waited for at once
// (Request::caller_waits): the forms that wait are those that do not, and a wait.
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

// What a request's memory lives in until Ronde is through with it.
struct Memory {
  at::Tensor input;
  at::Tensor output;
  std::shared_ptr<TensorOperation> operation;
};

// What a tensor and the options decide of a request: each struct of options has some of the fields.
template <typename Options>
Request request_for(Collective kind, const at::Tensor& tensor, const Options& options) {
  Request request;
  request.kind = kind;
  request.dtype = data_type_of(tensor.scalar_type()).value();
  request.shape = tensor.sizes().vec();
  request.device = native_device(tensor);
  request.name = options.name;
  if constexpr (requires { options.op; }) {
    request.op = options.op;
    request.prescale = options.prescale;
    request.postscale = options.postscale;
  }
  if constexpr (requires { options.root; }) request.root = options.root;
  request.set = options.process_set;
  request.timeout = options.timeout;
  return request;
}

TensorWork start(Request request, Memory memory) {
  if (memory.input.defined()) request.input = memory.input.const_data_ptr();
  if (memory.output.defined()) request.output = memory.output.mutable_data_ptr();
  request.caller_waits = CallerWaits::here();
  std::shared_ptr<TensorOperation> operation = memory.operation;
  request.keep_alive = std::make_shared<Memory>(std::move(memory));
  Work work = submit(std::move(request));
  return {std::move(work), std::move(operation)};
}

TensorWork start_out_of_place(Request request, const at::Tensor& tensor, bool reads) {
  Memory memory;
  if (reads) memory.input = readable(tensor);
  memory.output = empty_result(tensor.sizes(), tensor);
  memory.operation = std::make_shared<TensorOperation>(TensorOperation{memory.output});
  return start(std::move(request), std::move(memory));
}

// Into memory that is made once the shape of the result is known.
TensorWork start_allocating(Request request, const at::Tensor& tensor) {
  Memory memory;
  memory.input = readable(tensor);
  memory.operation = std::make_shared<TensorOperation>();
  // The memory belongs to the operation, which the request keeps alive.
  request.allocate_output =
      [operation = memory.operation.get(), like = memory.input,
       mode = c10::InferenceMode::is_enabled()](const std::vector<std::int64_t>& shape) {
        // Whichever thread runs the loop, the result is of the kind that the caller asked for.
        const c10::InferenceMode inference(mode);
        operation->result = empty_result(shape, like);
        return operation->result.mutable_data_ptr();
      };
  return start(std::move(request), std::move(memory));
}

// In place on `tensor`. Memory that is not row-major is reduced in a copy and written back by
// Request::finish, so that the tensor has the result even if nobody waits.
TensorWork start_in_place(Request request, const at::Tensor& tensor, bool reads) {
  const at::Tensor target = tensor.detach();
  Memory memory;
  memory.operation = std::make_shared<TensorOperation>(TensorOperation{tensor});
  if (is_row_major(target)) {
    memory.output = target;
  } else {
    memory.output = empty_result(target.sizes(), target);
    if (reads) memory.output.copy_(target);
    request.finish = [target, copy = memory.output] {
      const at::NoGradGuard no_grad;
      // Inference tensors may only be written in this mode, which is each thread's own.
      const c10::InferenceMode inference(target.is_inference());
      target.copy_(copy);
    };
  }
  memory.input = memory.output;
  TensorWork work = start(std::move(request), std::move(memory));
  // Backward must notice that a saved tensor was overwritten; inference tensors are never saved.
  if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
  return work;
}

}  // namespace

std::string rank_prefix() {
  return "rank " + std::to_string(rank()) + ": ";
}

std::string caller(std::string_view function, const std::string& name) {
  return rank_prefix() + "ronde::" + std::string(function) + "(" +
         (name.empty() ? "unnamed" : "\"" + name + "\"") + ")";
}

std::string describe_shape(at::IntArrayRef sizes) {
  std::string text = "[";
  for (const std::int64_t size : sizes) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const std::optional<DataType> type = data_type_of(tensor.scalar_type());
  const std::string type_text =
      type ? std::string(to_string(*type)) : std::string(c10::toString(tensor.scalar_type()));
  const std::string shape = tensor.is_nested() ? "nested" : describe_shape(tensor.sizes());
  return type_text + " " + shape + " on " + c10::DeviceTypeName(tensor.device().type(), true);
}

void check_tensor(const std::string& what, const at::Tensor& tensor) {
  const std::string text = objection(tensor);
  if (text.empty()) return;
  const std::string which = tensor.defined() ? " (" + describe(tensor) + ")" : "";
  throw UsageError(what + which + ": " + text);
}

void check_writable(const std::string& what, const at::Tensor& tensor) {
  check_tensor(what, tensor);
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  throw UsageError(what + " (" + describe(tensor) +
                   "): several elements of the tensor share one memory location (it was "
                   "expanded), so it cannot be changed in place. Call contiguous() first, or use "
                   "the form that returns a new tensor");
}

TensorWork start_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options,
                            Contribution contribution) {
  check_writable(caller("allreduce_", options.name), tensor);
  Request request = request_for(Collective::Allreduce, tensor, options);
  request.contributes = contribution == Contribution::Tensor;
  return start_in_place(std::move(request), tensor, true);
}

TensorWork start_symmetric_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options,
                                      Contribution contribution, bool lazy) {
  Request request = request_for(Collective::Allreduce, tensor, options);
  request.contributes = contribution == Contribution::Tensor;
  request.symmetric = true;
  request.lazy = lazy;
  return start_in_place(std::move(request), tensor, true);
}

at::Tensor alltoall_to(std::vector<std::int64_t>& received, const at::Tensor& tensor,
                       at::IntArrayRef splits, const AlltoallOptions& options) {
  const CallerWaits waits;
  const TensorWork work = alltoall_async(tensor, splits, options);
  at::Tensor result = work.wait_host();
  received = work.received_splits();
  return result;
}

}  // namespace detail

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

TensorWork allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  detail::check_tensor(detail::caller("allreduce", options.name), tensor);
  return detail::start_out_of_place(detail::request_for(Collective::Allreduce, tensor, options),
                                    tensor, true);
}

TensorWork allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options) {
  detail::refuse_recorded("allreduce", options.name, tensor);
  return detail::start_allreduce_(tensor, options, detail::Contribution::Tensor);
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_allreduce(tensor, options);
  const detail::CallerWaits waits;
  return allreduce_async(tensor, options).wait_host();
}

at::Tensor allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (detail::is_recorded_in_place(tensor)) return detail::recorded_allreduce_(tensor, options);
  const detail::CallerWaits waits;
  return allreduce_async_(tensor, options).wait_host();
}

TensorWork broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options) {
  detail::check_tensor(detail::caller("broadcast", options.name), tensor);
  return detail::start_out_of_place(detail::request_for(Collective::Broadcast, tensor, options),
                                    tensor, detail::is_root(options));
}

TensorWork broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options) {
  detail::refuse_recorded("broadcast", options.name, tensor);
  detail::check_writable(detail::caller("broadcast_", options.name), tensor);
  return detail::start_in_place(detail::request_for(Collective::Broadcast, tensor, options), tensor,
                                detail::is_root(options));
}

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_broadcast(tensor, options);
  const detail::CallerWaits waits;
  return broadcast_async(tensor, options).wait_host();
}

at::Tensor broadcast_(const at::Tensor& tensor, const BroadcastOptions& options) {
  if (detail::is_recorded_in_place(tensor)) return detail::recorded_broadcast_(tensor, options);
  const detail::CallerWaits waits;
  return broadcast_async_(tensor, options).wait_host();
}

TensorWork allgather_async(const at::Tensor& tensor, const AllgatherOptions& options) {
  detail::check_tensor(detail::caller("allgather", options.name), tensor);
  const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  Request request = detail::request_for(Collective::Allgather, rows, options);
  return detail::start_allocating(std::move(request), rows);
}

at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_allgather(tensor, options);
  const detail::CallerWaits waits;
  return allgather_async(tensor, options).wait_host();
}

TensorWork reducescatter_async(const at::Tensor& tensor, const ReducescatterOptions& options) {
  detail::check_tensor(detail::caller("reducescatter", options.name), tensor);
  Request request = detail::request_for(Collective::Reducescatter, tensor, options);
  return detail::start_allocating(std::move(request), tensor);
}

at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_reducescatter(tensor, options);
  const detail::CallerWaits waits;
  return reducescatter_async(tensor, options).wait_host();
}

TensorWork alltoall_async(const at::Tensor& tensor, at::IntArrayRef splits,
                          const AlltoallOptions& options) {
  detail::check_tensor(detail::caller("alltoall", options.name), tensor);
  Request request = detail::request_for(Collective::Alltoall, tensor, options);
  request.splits = splits.vec();
  return detail::start_allocating(std::move(request), tensor);
}

at::Tensor alltoall(const at::Tensor& tensor, at::IntArrayRef splits,
                    const AlltoallOptions& options) {
  if (detail::is_recorded(tensor)) return detail::recorded_alltoall(tensor, splits, options);
  const detail::CallerWaits waits;
  return alltoall_async(tensor, splits, options).wait_host();
}

}  // namespace ronde

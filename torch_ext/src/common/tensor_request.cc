// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/common/tensor_request.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <span>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/run.h"

namespace ronde::detail {
namespace {

/// Returns why Ronde cannot move `tensor` and what helps; empty if it can. The order matters: an
/// undefined tensor has no layout, a nested one no sizes.
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
  if (tensor.is_quantized()) {
    return "the tensor is quantised, and its scale would stay behind. Call dequantize() or "
           "int_repr() first, or use broadcast_object(), which moves all of it";
  }
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    return "tensors on " + tensor.device().str() + " are not supported. Call cpu() first";
  }
  if (!tensor.has_storage()) return "the tensor has no memory of its own. Call clone() first";
  return {};
}

// Note [Dtypes that Ronde does not have]
//
// A complex number of two halves is moved and added as these; elements of other types that Ronde
// does not have are moved as bytes, and never reduced. The request's shape then has one more
// dimension than the tensor, the last, so that rows stay rows. Results have the tensor's dtype.
struct Parts {
  DataType dtype = DataType::U8;
  std::optional<std::int64_t> count = {};  // per element; none where Ronde has the dtype
};

Parts parts_of(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  if (const auto known = data_type_of(type)) return {*known, std::nullopt};
  if (tensor.is_complex()) return {data_type_of(c10::toRealValueType(type)).value(), 2};
  return {DataType::U8, tensor.element_size()};
}

// empty_like() would keep the memory format, and a result is row-major.
at::Tensor empty_result(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, at::TensorOptions().dtype(like.scalar_type()).device(like.device()));
}

// Keeps a request's memory until Ronde no longer accesses it.
struct Memory {
  at::Tensor input;
  at::Tensor output;
  std::shared_ptr<TensorOperation> operation;
};

/// Returns the memory of a tensor without gaps (a transposed one, say), or else its first element:
/// memory between elements may be another tensor's, such as the next column of a matrix.
std::span<const std::byte> memory_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  const bool has_gaps = !tensor.is_non_overlapping_and_dense();
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          has_gaps ? tensor.itemsize() : tensor.nbytes()};
}

/// Has callbacks on the engine's threads run in this stream.
void use_stream(Request& request, const std::optional<c10::Stream>& stream) {
  if (!stream) return;
  request.stream = native_stream(stream);
  if (request.allocate_output) {
    request.allocate_output = [stream, allocate = std::move(request.allocate_output)](
                                  const std::vector<std::int64_t>& shape) {
      const c10::OptionalStreamGuard guard(stream);
      return allocate(shape);
    };
  }
  if (request.finish) {
    request.finish = [stream, finish = std::move(request.finish)] {
      const c10::OptionalStreamGuard guard(stream);
      finish();
    };
  }
}

Prepared prepare(Request request, Memory memory) {
  const at::Tensor& either = memory.input.defined() ? memory.input : memory.output;
  memory.operation->stream = current_stream(either.device());
  use_stream(request, memory.operation->stream);
  if (memory.input.defined()) request.input = memory.input.const_data_ptr();
  if (memory.output.defined()) request.output = memory.output.mutable_data_ptr();
  request.caller_waits = CallerWaits::here();
  std::shared_ptr<TensorOperation> operation = memory.operation;
  request.keep_alive = std::make_shared<Memory>(std::move(memory));
  return {std::move(request), std::move(operation)};
}

template <typename Stream>
void* native_handle(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    throw UsageError(rank_prefix() + "this LibTorch does not expose the stream that a tensor on " +
                     stream.device().str() +
                     " is ready in. Use 2.11 or newer, or copy the tensor to the CPU");
  }
}

}  // namespace

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
    case at::kUInt16:
      return DataType::U16;
    case at::kUInt32:
      return DataType::U32;
    case at::kUInt64:
      return DataType::U64;
    case at::kComplexFloat:
      return DataType::C64;
    case at::kComplexDouble:
      return DataType::C128;
    default:
      return std::nullopt;
  }
}

Device native_device(const at::Tensor& tensor) {
  if (tensor.is_cuda()) return {.kind = DeviceKind::Cuda, .index = tensor.get_device()};
  return {};
}

bool may_overlap_itself(const at::Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride and size
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1) dimensions.emplace_back(tensor.stride(dim), tensor.size(dim));
  }
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t reach = 0;  // the offset of the last element within the dimensions so far
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return tensor.numel() > 0;
    reach += stride * (size - 1);
  }
  return false;
}

at::Tensor without_repeats(at::Tensor tensor) {
  for (std::int64_t dim = 0; tensor.layout() == at::kStrided && dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

void write_values(const at::Tensor& tensor, const at::Tensor& values) {
  // Inference tensors may only be written in inference mode, which is thread-local.
  const c10::InferenceMode inference(tensor.is_inference());
  const at::NoGradGuard no_grad;
  const at::Tensor places = without_repeats(tensor.detach());
  at::Tensor from = values;
  for (std::int64_t dim = 0; dim < places.dim(); ++dim) {
    if (from.size(dim) != places.size(dim)) from = from.narrow(dim, 0, places.size(dim));
  }
  places.copy_(from);
}

at::Tensor plain_values(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

Request request_for(Collective kind, const at::Tensor& tensor) {
  const Parts parts = parts_of(tensor);
  // The engine refuses a scalar, which has no rows, on all ranks.
  const bool divides_rows = kind == Collective::Reducescatter || kind == Collective::Alltoall;
  Request request;
  request.kind = kind;
  request.dtype = parts.dtype;
  request.shape = tensor.sizes().vec();
  if (parts.count && (tensor.dim() > 0 || !divides_rows)) request.shape.push_back(*parts.count);
  request.device = native_device(tensor);
  return request;
}

Prepared prepare_out_of_place(Request request, const at::Tensor& tensor, bool reads) {
  Memory memory;
  if (reads) memory.input = plain_values(tensor);
  memory.output = empty_result(tensor.sizes(), tensor);
  memory.operation = std::make_shared<TensorOperation>(TensorOperation{memory.output});
  return prepare(std::move(request), std::move(memory));
}

Prepared prepare_allocating(Request request, const at::Tensor& tensor) {
  Memory memory;
  memory.input = plain_values(tensor);
  memory.operation = std::make_shared<TensorOperation>();
  // The operation, which the request keeps alive, owns the memory.
  request.allocate_output =
      [operation = memory.operation.get(), like = memory.input,
       has_parts = parts_of(tensor).count.has_value(),
       mode = c10::InferenceMode::is_enabled()](std::vector<std::int64_t> shape) {
        if (has_parts) shape.pop_back();
        // The result follows the caller's inference mode, whichever thread runs the loop.
        const c10::InferenceMode inference(mode);
        operation->result = empty_result(shape, like);
        return operation->result.mutable_data_ptr();
      };
  return prepare(std::move(request), std::move(memory));
}

Prepared prepare_in_place(Request request, const at::Tensor& tensor, bool reads) {
  const at::Tensor target = tensor.detach();
  Memory memory;
  memory.operation = std::make_shared<TensorOperation>(TensorOperation{tensor});
  if (is_row_major(target)) {
    memory.output = target;
  } else {
    memory.output = empty_result(target.sizes(), target);
    if (reads) memory.output.copy_(target);
    request.written = memory_of(target);
    // mark_written() bumps the version once; target's own counter would move at an unknown time.
    request.finish = [target = target.variable_data(), copy = memory.output] {
      write_values(target, copy);
    };
  }
  memory.input = memory.output;
  return prepare(std::move(request), std::move(memory));
}

Prepared prepare_sending(Request request, const at::Tensor& tensor) {
  Memory memory;
  memory.input = plain_values(tensor);
  memory.operation = std::make_shared<TensorOperation>();
  return prepare(std::move(request), std::move(memory));
}

bool is_row_major(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

Prepared prepare_again(const PersistentOp& persistent, const at::Tensor& tensor, bool contributes) {
  Prepared prepared{.request = {},
                    .operation = std::make_shared<TensorOperation>(TensorOperation{tensor}),
                    .persistent = persistent};
  prepared.operation->stream = current_stream(tensor.device());
  Request& request = prepared.request;
  request.device.kind = native_device(tensor).kind;
  request.stream = native_stream(prepared.operation->stream);
  request.input = request.output = tensor.mutable_data_ptr();
  request.contributes = contributes;
  request.caller_waits = CallerWaits::here();
  // The program may give the tensor another storage before the operation is done.
  request.keep_alive = std::make_shared<c10::Storage>(tensor.storage());
  return prepared;
}

void mark_written(const at::Tensor& tensor) {
  // Backward must notice that a saved tensor was overwritten; inference tensors are never saved.
  if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
}

TensorWork start(Prepared prepared) {
  Work work = prepared.persistent ? prepared.persistent.start(take_start(prepared.request))
                                  : submit(std::move(prepared.request));
  return {std::move(work), std::move(prepared.operation)};
}

std::vector<TensorWork> start_together(std::vector<Prepared> prepared) {
  std::vector<TensorWork> started(prepared.size());
  if (prepared.size() == 1) {
    started[0] = start(std::move(prepared[0]));
    return started;
  }
  for (const DeviceKind kind : {DeviceKind::Cpu, DeviceKind::Cuda}) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < prepared.size(); ++i) {
      if (prepared[i].request.device.kind == kind) places.push_back(i);
    }
    if (places.size() == 1) {
      started[places[0]] = start(std::move(prepared[places[0]]));
      continue;
    }
    std::vector<Request> requests;
    for (const std::size_t i : places) requests.push_back(std::move(prepared[i].request));
    if (requests.empty()) continue;
    std::vector<Work> works = submit_group(std::move(requests));
    for (std::size_t i = 0; i < works.size(); ++i) {
      started[places[i]] = {std::move(works[i]), std::move(prepared[places[i]].operation)};
    }
  }
  return started;
}

TensorWork start_in_place(Request request, const at::Tensor& tensor, bool reads) {
  TensorWork work = start(prepare_in_place(std::move(request), tensor, reads));
  mark_written(tensor);
  return work;
}

TensorWork start_max(const std::string& name, const at::Tensor& values, ProcessSet set,
                     std::chrono::nanoseconds timeout) {
  const AllreduceOptions options{
      .name = name, .op = ReduceOp::Max, .process_set = set, .timeout = timeout};
  return start_in_place(request_for(Collective::Allreduce, values, options), values, true);
}

std::string rank_prefix(ProcessSet set) {
  const std::string rank = rank_text(set);
  return rank.empty() ? "" : rank + ": ";
}

std::string caller(std::string_view function, const std::string& name, ProcessSet set) {
  return rank_prefix(set) + "ronde::" + std::string(function) + "(" +
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

std::string describe_type(at::ScalarType type) {
  const std::optional<DataType> known = data_type_of(type);
  return known ? std::string(to_string(*known)) : std::string(c10::toString(type));
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const std::string shape = tensor.is_nested() ? "nested" : describe_shape(tensor.sizes());
  return describe_type(tensor.scalar_type()) + " " + shape + " on " +
         c10::DeviceTypeName(tensor.device().type(), true);
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

void check_reducible(const std::string& what, const at::Tensor& tensor, ReduceOp op) {
  const auto refuse = [&](const std::string& text) {
    throw UsageError(what + " (" + describe(tensor) + "): " + text);
  };
  const bool has_order = op == ReduceOp::Min || op == ReduceOp::Max;
  if (tensor.is_complex() && (has_order || op == ReduceOp::Product)) {
    refuse(
        "complex tensors are combined by their real and imaginary parts, so there is no " +
        std::string(to_string(op)) +
        " of them. Use sum or average, or pass torch::view_as_real(tensor) if each part is meant "
        "by itself");
  }
  if (tensor.is_complex() || data_type_of(tensor.scalar_type())) return;
  refuse(
      "elements of this dtype are moved, not computed with. Convert the tensor: integers, f16, "
      "bf16, f32, f64, bool and complex are reduced");
}

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void* native_stream(const std::optional<c10::Stream>& stream) {
  return stream ? native_handle(*stream) : nullptr;
}

Logger rank_log(ProcessSet set) {
  const Runtime& runtime = runtime_of(set);
  return Logger(parse_log_level(runtime.config().log_level), runtime.topology().rank,
                runtime.world_name());
}

}  // namespace ronde::detail

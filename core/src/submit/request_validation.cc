// SPDX-License-Identifier: Apache-2.0
#include "core/src/submit/request_validation.h"

#include <cmath>

#include "core/src/submit/point_to_point.h"
#include "core/src/submit/rows.h"
#include "ronde/error.h"

namespace ronde {
namespace {

bool is_reserved(const std::string& name) {
  return is_unnamed(name) || is_message(name) || is_join(name);
}

/// There certainly is something to write on `rank`: what others bring is not known yet.
bool has_result(const Request& request, int rank) {
  if (request.kind == Collective::Alltoall) return false;
  const bool scatters = request.kind == Collective::Reducescatter && !request.shape.empty();
  if (scatters && request.shape[0] <= rank) return false;
  return element_count(request.shape) > 0;
}

/// Checks its wire_dtype.
Problem wire_error(const Request& request) {
  if (!request.wire_dtype || *request.wire_dtype == request.dtype) return std::nullopt;
  const bool is_full = request.dtype == DataType::F32 || request.dtype == DataType::F64;
  if (request.kind != Collective::Allreduce || !is_full || !is_half(*request.wire_dtype)) {
    return std::string(to_string(request.dtype)) + " cannot be sent as " +
           std::string(to_string(*request.wire_dtype)) +
           ": wire_dtype is for an allreduce of f32 or f64, and f16 or bf16. Leave it out, or "
           "convert the buffer";
  }
  if (!request.symmetric) return std::nullopt;
  return "a symmetric allreduce cannot have a wire_dtype, as nothing travels: leave one of the two "
         "out";
}

/// Checks that it can be an Adasum, if it is to be one.
Problem adasum_error(const Request& request) {
  if (!is_reduction(request.kind) || request.op != ReduceOp::Adasum) return std::nullopt;
  if (request.kind != Collective::Allreduce) {
    return "adasum is for allreduces, as it combines whole tensors: use allreduce, and keep a part";
  }
  if (!is_floating(request.dtype)) {
    return "adasum of " + std::string(to_string(request.dtype)) +
           ": its factors are fractions, so it is for f16, bf16, f32 and f64. Convert the buffer, "
           "or use sum";
  }
  if (request.device.kind != DeviceKind::Cpu) {
    return "adasum is computed on the CPU: copy the buffer there, or use another op";
  }
  if (request.symmetric) {
    return "adasum of a symmetric buffer: each rank needs all of it, so leave symmetric out";
  }
  // A rank that adds nothing brings zeros, and zero times infinity is NaN.
  if (!std::isinf(request.prescale)) return std::nullopt;
  return "adasum needs a finite prescale";
}

}  // namespace

std::string shown(const Request& request) {
  const bool has_name = !request.name.empty() && !is_reserved(request.name);
  return std::string(to_string(request.kind)) + (has_name ? " '" + request.name + "'" : "");
}

void check_request(const Request& request, int rank, int size) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(shown(request) + ": " + what);
  };
  if (is_reserved(request.name)) refuse("a name cannot begin with NUL, nor with a byte 1 or 2");
  const bool is_known = static_cast<std::size_t>(request.kind) < kCollectiveCount &&
                        static_cast<std::size_t>(request.dtype) < kDataTypeCount &&
                        static_cast<std::size_t>(request.op) < kReduceOpCount &&
                        request.device.kind <= DeviceKind::Cuda;
  if (!is_known) refuse("kind, dtype, op or device is none that there is");
  if (const Problem error = wire_error(request)) refuse(*error);
  if (const Problem error = adasum_error(request)) refuse(*error);
  if (std::isnan(request.prescale) || std::isnan(request.postscale)) refuse("a scale is NaN");
  if (!request.contributes && !is_reduction(request.kind)) {
    refuse("only a reduction can go without this rank's contribution");
  }
  if (!request.splits.empty() && request.kind != Collective::Alltoall) {
    refuse("only an alltoall has splits");
  }
  if (request.kind == Collective::Join && (!request.name.empty() || request.timeout.count() > 0)) {
    refuse("it has no name and no timeout; Work::wait_for() waits for a while");
  }
  if (moves_no_data(request.kind)) return;
  if (is_point_to_point(request.kind)) {
    if (const Problem error = message_error(request, rank, size)) refuse(*error);
    return;
  }
  if (shape_error(request.shape, request.dtype)) return;  // every rank is told of it
  const bool needs_input = request.kind != Collective::Broadcast && request.contributes;
  if (needs_input && request.input == nullptr && element_count(request.shape) > 0) {
    refuse("input is null");
  }
  const bool allocates = may_allocate(request.kind);
  const bool has_output = request.output != nullptr || (allocates && request.allocate_output);
  if (!has_output && has_result(request, rank)) {
    refuse(allocates ? "neither output nor allocate_output is set" : "output is null");
  }
}

std::uint64_t symmetric_place(const Request& request, const SymmetricHeap* heap) {
  const std::uint64_t bytes = element_count(request.shape) * size_of(request.dtype);
  if (!request.symmetric || bytes == 0) return 0;
  const auto offset = heap != nullptr ? heap->offset_of(request.output, bytes) : std::nullopt;
  const bool in_place = request.input == request.output || !request.contributes;
  // A neutral element of another op would have to survive the scaling.
  const bool is_neutral =
      request.contributes || request.op == ReduceOp::Sum || request.op == ReduceOp::Average;
  const bool is_allreduce = request.kind == Collective::Allreduce;
  const bool is_here = request.device.kind == DeviceKind::Cpu;
  if (offset && in_place && is_neutral && is_allreduce && is_here) return *offset + 1;
  throw UsageError(shown(request) +
                   ": only an allreduce in place on memory of the symmetric heap, which is of the "
                   "CPU, is symmetric, and only a sum or average where this rank does not "
                   "contribute");
}

void check_group(const std::vector<Request>& requests) {
  if (requests.empty()) throw UsageError("a group needs at least one operation");
  for (const Request& request : requests) {
    const auto refuse = [&](const std::string& what) {
      throw UsageError(shown(request) + ": " + what);
    };
    if (moves_no_data(request.kind) || is_point_to_point(request.kind)) {
      refuse("only collectives that move data can be in a group");
    }
    if (request.set != requests[0].set) {
      refuse("all operations of a group must be in one process set");
    }
    if (request.device.kind != requests[0].device.kind) {
      refuse("all operations of a group must be on one kind of device");
    }
  }
}

Problem agreed_error(const SetInfo& set, const RequestMeta& meta) {
  const int size = set.topology.size;
  const bool is_global = set.id == kGlobalSet.id;
  if (moves_no_data(meta.kind)) return std::nullopt;
  if (Problem error = shape_error(meta.shape, meta.dtype)) return error;
  if (meta.kind == Collective::Broadcast && (meta.root < 0 || meta.root >= size)) {
    return "root " + std::to_string(meta.root) + " is out of range: there are ranks 0 to " +
           std::to_string(size - 1) +
           (is_global ? "" : " in process set " + std::to_string(set.id));
  }
  if (may_allocate(meta.kind) && meta.shape.empty()) {
    return "a scalar has no first dimension to " +
           std::string(meta.kind == Collective::Allgather ? "gather" : "split") +
           " along; give it the shape [1]";
  }
  if (meta.kind == Collective::Alltoall) {
    if (Problem error = splits_error(meta, size)) return error;
  }
  if (is_reduction(meta.kind) && meta.dtype == DataType::Bool && meta.op == ReduceOp::Average) {
    return "bools have no average; convert them first, or use sum (or), product (and)";
  }
  // Members of other sets check that themselves, as rank 0 need not be one.
  return is_global ? backend_error(set, meta) : std::nullopt;
}

}  // namespace ronde

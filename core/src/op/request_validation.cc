// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/request_validation.h"

#include <algorithm>
#include <cmath>

#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Checks a send or recv for errors that rank `rank` of `size` alone can see.
Problem message_error(const Request& request, int rank, int size) {
  const bool sends = request.kind == Collective::Send;
  if (!request.name.empty()) return "messages have no name; they are matched by ranks and tag";
  if (request.tag < 0) return "tag " + std::to_string(request.tag) + " is negative";
  const bool from_any = !sends && request.peer == kAnyRank;
  if (!from_any && (request.peer < 0 || request.peer >= size)) {
    return "peer " + std::to_string(request.peer) + " is out of range: there are ranks 0 to " +
           std::to_string(size - 1) + (sends ? "" : ", or kAnyRank");
  }
  if (request.peer == rank) return "peer " + std::to_string(rank) + " is this rank itself";
  if (from_any && size == 1) return "there is no other rank";
  return shape_error(request.shape, request.dtype);
}

bool is_reserved(const std::string& name) {
  return is_unnamed(name) || is_message(name) || is_join(name);
}

/// Returns whether `rank` certainly has a result to write: what others bring is not known yet.
bool has_result(const OpSpec& spec, int rank) {
  if (spec.kind == Collective::Alltoall || spec.kind == Collective::Send) return false;
  if (spec.kind == Collective::Reduce && spec.root != rank) return false;
  const bool scatters = spec.kind == Collective::Reducescatter && !spec.shape.empty();
  if (scatters && spec.shape[0] <= rank) return false;
  return element_count(spec.shape) > 0;
}

std::string shown(Collective kind, const std::string& name) {
  const bool has_name = !name.empty() && !is_reserved(name);
  return std::string(to_string(kind)) + (has_name ? " '" + name + "'" : "");
}

/// Checks its wire_dtype.
Problem wire_error(const Request& request) {
  if (!request.wire_dtype || *request.wire_dtype == request.dtype) return std::nullopt;
  const DataType real = real_type(request.dtype);
  const bool is_full = real == DataType::F32 || real == DataType::F64;
  const bool reduces = request.kind == Collective::Allreduce || request.kind == Collective::Reduce;
  if (!reduces || !is_full || !is_half(*request.wire_dtype)) {
    return std::string(to_string(request.dtype)) + " cannot be sent as " +
           std::string(to_string(*request.wire_dtype)) +
           ": wire_dtype is for an allreduce or reduce of f32 or f64, and f16 or bf16. Leave it "
           "out, or convert the buffer";
  }
  if (!request.symmetric) return std::nullopt;
  return "a symmetric allreduce cannot have a wire_dtype, as nothing travels: leave one of the two "
         "out";
}

/// Checks the request if it is an Adasum.
Problem adasum_error(const Request& request) {
  if (!is_reduction(request.kind) || request.op != ReduceOp::Adasum) return std::nullopt;
  if (request.kind != Collective::Allreduce) {
    return "adasum is for allreduces, as it combines whole tensors: use allreduce, and keep a part";
  }
  if (!is_floating(real_type(request.dtype))) {
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

/// Checks that the op is one of the type.
Problem op_error(const Request& request) {
  if (!is_reduction(request.kind)) return std::nullopt;
  const std::string what =
      std::string(to_string(request.op)) + " of " + std::string(to_string(request.dtype)) + ": ";
  const bool has_bits = is_integer(request.dtype) || request.dtype == DataType::Bool;
  if (is_bitwise(request.op) && !has_bits) {
    return what + "bits are combined of integers and bools. Use another op or type";
  }
  const bool has_parts = combining_op(request.op) == ReduceOp::Sum || !is_elementwise(request.op);
  if (!is_complex(request.dtype) || has_parts) return std::nullopt;
  return what +
         "complex numbers are combined by their real and imaginary parts, so use sum or average, "
         "or reduce the parts as real numbers";
}

/// Checks that the factors of a request of integers can be exact: Note [Exact sums].
Problem factor_error(const Request& request) {
  const bool has_factors = request.prescale != 1.0 || request.postscale != 1.0;
  if (!is_reduction(request.kind) || !is_integer(request.dtype) || !has_factors) {
    return std::nullopt;
  }
  const bool adds = combining_op(request.op) == ReduceOp::Sum;
  if (adds && size_of(request.dtype) < sizeof(std::int64_t)) return std::nullopt;
  return (adds ? "factors are f64 numbers, which are not exact for "
               : "prescale and postscale are "
                 "not for the " +
                     std::string(to_string(request.op)) + " of ") +
         std::string(to_string(request.dtype)) +
         ": leave prescale and postscale out, or convert the buffer to f64";
}

}  // namespace

std::string shown(const Request& request) {
  return shown(request.kind, request.name);
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
  if (const Problem error = op_error(request)) refuse(*error);
  if (const Problem error = adasum_error(request)) refuse(*error);
  if (const Problem error = factor_error(request)) refuse(*error);
  if (std::isnan(request.prescale) || std::isnan(request.postscale)) refuse("a scale is NaN");
  if (!request.splits.empty() && request.kind != Collective::Alltoall) {
    refuse("only an alltoall has splits");
  }
  const bool has_more =
      !request.name.empty() || request.timeout.count() > 0 || !request.refusal.empty();
  if (request.kind == Collective::Join && has_more) {
    refuse("it has no name, no timeout and no refusal; Work::wait_for() waits for a while");
  }
  if (!is_point_to_point(request.kind)) return;
  if (const Problem error = message_error(request, rank, size)) refuse(*error);
}

void check_start(const Start& start, const OpSpec& spec, std::uint64_t input_bytes, int rank) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(shown(spec.kind, spec.name) + ": " + what);
  };
  if (!start.contributes && !is_reduction(spec.kind)) {
    refuse("only a reduction can go without this rank's contribution");
  }
  const bool can_scale = is_reduction(spec.kind) && is_floating(real_type(spec.dtype)) &&
                         spec.device == DeviceKind::Cpu;
  if (start.rank_factor != 1.0 && !can_scale) {
    refuse(
        "rank_factor is for reductions of floating-point and complex numbers on the CPU: leave it "
        "out, and scale the input");
  }
  if (std::isnan(start.rank_factor)) refuse("rank_factor is NaN");
  if (moves_no_data(spec.kind) || !start.refusal.empty()) return;
  const bool allocates = may_allocate(spec.kind);
  const bool needs_input =
      spec.kind != Collective::Broadcast && spec.kind != Collective::Recv && start.contributes;
  const bool lacks_input = needs_input && start.input == nullptr;
  const bool lacks_output =
      start.output == nullptr && !(allocates && start.allocate_output != nullptr);
  if (!lacks_input && !lacks_output) return;
  if (shape_error(spec.shape, spec.dtype)) return;  // all ranks report it
  if (lacks_input && input_bytes > 0) refuse("input is null");
  if (lacks_output && has_result(spec, rank)) {
    refuse(allocates ? "neither output nor allocate_output is set" : "output is null");
  }
}

std::uint64_t written_bytes(const Request& request, int rank, int size) {
  const bool writes = !moves_no_data(request.kind) && request.kind != Collective::Send;
  if (!writes || shape_error(request.shape, request.dtype)) return 0;
  const std::uint64_t row_bytes = row_elements(request.shape) * size_of(request.dtype);
  const std::int64_t rows = request.shape.empty() ? 1 : request.shape[0];
  const auto own = static_cast<std::size_t>(rank);
  std::int64_t written = rows;
  if (request.kind == Collective::Reduce && request.root != rank) written = 0;
  if (request.kind == Collective::Reducescatter) written = scattered_rows(rows, size).at(own);
  if (request.kind == Collective::Alltoall) {
    const bool has_splits = own < request.splits.size();
    written = has_splits ? std::max<std::int64_t>(request.splits[own], 0) : rows / size;
  }
  return static_cast<std::uint64_t>(written) * row_bytes;
}

std::uint64_t input_bytes(const Request& request) {
  return moves_no_data(request.kind) ? 0 : element_count(request.shape) * size_of(request.dtype);
}

std::uint64_t symmetric_place(const Start& start, const OpSpec& spec, const SymmetricHeap* heap) {
  if (!start.refusal.empty()) return 0;
  const std::uint64_t bytes = element_count(spec.shape) * size_of(spec.dtype);
  if (bytes == 0 && !spec.has_splits) return 0;
  const auto offset = heap != nullptr ? heap->offset_of(start.output, bytes) : std::nullopt;
  const bool in_place = start.input == start.output || !start.contributes;
  // A neutral element of another op would have to survive the scaling.
  const bool is_neutral =
      start.contributes || spec.op == ReduceOp::Sum || spec.op == ReduceOp::Average;
  const bool is_allreduce = spec.kind == Collective::Allreduce;
  const bool is_here = spec.device == DeviceKind::Cpu;
  if (offset && in_place && is_neutral && is_allreduce && is_here) {
    // Exact sums are made beside the buffer.
    return needs_exact_sum(spec) ? 0 : *offset + 1;
  }
  throw UsageError(shown(spec.kind, spec.name) +
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

Problem agreed_error(const SetInfo& set, const OpSpec& spec) {
  const int size = set.topology.size;
  const bool is_global = set.id == kGlobalSet.id;
  if (moves_no_data(spec.kind)) return std::nullopt;
  if (Problem error = shape_error(spec.shape, spec.dtype)) return error;
  if (has_root(spec.kind) && (spec.root < 0 || spec.root >= size)) {
    return "root " + std::to_string(spec.root) + " is out of range: there are ranks 0 to " +
           std::to_string(size - 1) +
           (is_global ? "" : " in process set " + std::to_string(set.id));
  }
  if (may_allocate(spec.kind) && spec.shape.empty()) {
    return "a scalar has no first dimension to " +
           std::string(spec.kind == Collective::Allgather ? "gather" : "split") +
           " along; give it the shape [1]";
  }
  if (spec.kind == Collective::Alltoall) {
    if (Problem error = splits_error(spec, size)) return error;
  }
  if (is_reduction(spec.kind) && spec.dtype == DataType::Bool && spec.op == ReduceOp::Average) {
    return "bools have no average; convert them first, or use sum (or), product (and)";
  }
  // Members of other sets check that themselves, as rank 0 need not be one.
  return is_global ? backend_error(set, spec) : std::nullopt;
}

}  // namespace ronde

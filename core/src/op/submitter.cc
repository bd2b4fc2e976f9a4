// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/submitter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/src/base/monotonic_clock.h"
#include "core/src/base/rank_list.h"
#include "core/src/op/op_spec.h"
#include "ronde/kernels.h"

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

/// "allreduce 'x'", or "allreduce" if the Request or OpSpec has no name that can be shown.
std::string shown(const auto& operation) {
  const bool has_name = !operation.name.empty() && !is_reserved(operation.name);
  return std::string(to_string(operation.kind)) + (has_name ? " '" + operation.name + "'" : "");
}

[[noreturn]] void refuse(const auto& operation, const std::string& what) {
  throw UsageError(shown(operation) + ": " + what);
}

/// Throws UsageError for errors that this rank alone can see, except those of the fields of Start.
/// `rank`, `size`: within the process set.
void check_request(const Request& request, int rank, int size) {
  if (is_reserved(request.name)) {
    refuse(request, "a name cannot begin with NUL, nor with a byte 1 or 2");
  }
  const bool is_known = static_cast<std::size_t>(request.kind) < kCollectiveCount &&
                        static_cast<std::size_t>(request.dtype) < kDataTypeCount &&
                        static_cast<std::size_t>(request.op) < kReduceOpCount &&
                        request.device.kind <= DeviceKind::Cuda;
  if (!is_known) refuse(request, "kind, dtype, op or device is none that there is");
  for (const auto error_of : {wire_error, op_error, adasum_error, factor_error}) {
    if (const Problem error = error_of(request)) refuse(request, *error);
  }
  if (std::isnan(request.prescale) || std::isnan(request.postscale)) {
    refuse(request, "a scale is NaN");
  }
  if (!request.splits.empty() && request.kind != Collective::Alltoall) {
    refuse(request, "only an alltoall has splits");
  }
  const bool has_more =
      !request.name.empty() || request.timeout.count() > 0 || !request.refusal.empty();
  if (request.kind == Collective::Join && has_more) {
    refuse(request,
           "it has no name, no timeout and no refusal; Work::wait_for() waits for a while");
  }
  if (!is_point_to_point(request.kind)) return;
  if (const Problem error = message_error(request, rank, size)) refuse(request, *error);
}

/// Checks a group as a whole. Throws UsageError.
void check_group(const std::vector<Request>& requests) {
  if (requests.empty()) throw UsageError("a group needs at least one operation");
  for (const Request& request : requests) {
    if (moves_no_data(request.kind) || is_point_to_point(request.kind)) {
      refuse(request, "only collectives that move data can be in a group");
    }
    if (request.set != requests[0].set) {
      refuse(request, "all operations of a group must be in one process set");
    }
    if (request.device.kind != requests[0].device.kind) {
      refuse(request, "all operations of a group must be on one kind of device");
    }
  }
}

/// Sorts the members in the same order on every rank: by name, and those without one by their
/// calls.
void sort_members(std::vector<Submission>& members) {
  std::ranges::stable_sort(members, [](const Submission& a, const Submission& b) {
    const std::string& first = a.spec().name;
    const std::string& second = b.spec().name;
    return second.empty() ? !first.empty() : !first.empty() && first < second;
  });
}

/// Makes the spec of the group, which then owns those of its sorted members.
void share_spec(Submission& group) {
  OpSpec spec;
  const OpSpec& first = group.members.front().spec();
  spec.kind = Collective::Barrier;
  spec.set = first.set;
  spec.device = first.device;
  spec.name = first.name;
  for (const Submission& member : group.members) spec.members.push_back(member.spec());
  group.key.spec = share(std::move(spec));
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    group.members[i].key.spec = member_of(group.key.spec, i);
  }
}

/// Checks the fields of Start: the buffers, and whether the rank may contribute nothing. Throws
/// UsageError.
void check_start(const Start& start, const Preparation& preparation) {
  const OpSpec& spec = *preparation.spec;
  if (!start.contributes && !is_reduction(spec.kind)) {
    refuse(spec, "only a reduction can go without this rank's contribution");
  }
  const bool can_scale = is_reduction(spec.kind) && is_floating(real_type(spec.dtype)) &&
                         spec.device == DeviceKind::Cpu;
  if (start.rank_factor != 1.0 && !can_scale) {
    refuse(
        spec,
        "rank_factor is for reductions of floating-point and complex numbers on the CPU: leave it "
        "out, and scale the input");
  }
  if (std::isnan(start.rank_factor)) refuse(spec, "rank_factor is NaN");
  if (moves_no_data(spec.kind) || !start.refusal.empty()) return;
  const bool allocates = may_allocate(spec.kind);
  const bool needs_input =
      spec.kind != Collective::Broadcast && spec.kind != Collective::Recv && start.contributes;
  const bool lacks_input = needs_input && start.input == nullptr;
  const bool lacks_output =
      start.output == nullptr && !(allocates && start.allocate_output != nullptr);
  if (lacks_input && preparation.input_bytes > 0) refuse(spec, "input is null");
  // The rows that an alltoall brings are not known yet.
  const bool has_result = spec.kind != Collective::Alltoall && preparation.output_bytes > 0;
  if (lacks_output && has_result) {
    refuse(spec, allocates ? "neither output nor allocate_output is set" : "output is null");
  }
}

/// Returns the bytes that rank `rank` of `size` certainly writes at its output: for an allgather or
/// alltoall those that it gets from itself, as the rest is not known yet. None for a shape that the
/// ranks refuse, as that of a scalar for a reducescatter.
std::uint64_t written_bytes(const Request& request, int rank, int size) {
  const bool writes = !moves_no_data(request.kind) && request.kind != Collective::Send;
  if (!writes || shape_error(request.shape, request.dtype)) return 0;
  const std::uint64_t row_bytes = row_elements(request.shape) * size_of(request.dtype);
  const bool scatters = request.kind == Collective::Reducescatter;
  const std::int64_t rows = !request.shape.empty() ? request.shape[0] : scatters ? 0 : 1;
  const auto own = static_cast<std::size_t>(rank);
  std::int64_t written = rows;
  if (request.kind == Collective::Reduce && request.root != rank) written = 0;
  if (scatters) written = scattered_rows(rows, size).at(own);
  if (request.kind == Collective::Alltoall) {
    const bool has_splits = own < request.splits.size();
    written = has_splits ? std::max<std::int64_t>(request.splits[own], 0) : rows / size;
  }
  return static_cast<std::uint64_t>(written) * row_bytes;
}

/// Returns the bytes of its input; none for a shape that the ranks refuse.
std::uint64_t input_bytes(const Request& request) {
  const bool has_input = !moves_no_data(request.kind) && !shape_error(request.shape, request.dtype);
  return has_input ? element_count(request.shape) * size_of(request.dtype) : 0;
}

/// Returns the OpSpec::symmetric_place of a start that shall be symmetric; 0 if it need not be.
/// Throws UsageError if it cannot be. `heap`: null if there is none.
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
  refuse(spec,
         "only an allreduce in place on memory of the symmetric heap, which is of the CPU, is "
         "symmetric, and only a sum or average where this rank does not contribute");
}

Work push(SubmissionQueue& queue, Submission submission) {
  Work work(submission.work);
  queue.push(std::move(submission));
  return work;
}

}  // namespace

Submitter::Submitter(const Topology& topology, const SetTable& sets, SubmissionQueue& queue,
                     std::shared_ptr<SymmetricHeap> heap,
                     std::shared_ptr<DeviceStreams> device_streams,
                     std::weak_ptr<WaitHelper> engine, std::shared_ptr<Logger> log)
    : topology_(topology),
      sets_(sets),
      queue_(queue),
      heap_(std::move(heap)),
      device_streams_(std::move(device_streams)),
      engine_(std::move(engine)),
      log_(std::move(log)) {}

/// Returns the set of the request; null: the global one. Throws UsageError if this rank is not in
/// it.
std::shared_ptr<const SetInfo> Submitter::set_of(const Request& request) const {
  if (sets_.is_everybody(request.set)) return nullptr;
  std::shared_ptr<const SetInfo> info = sets_.at(request.set);
  if (info->is_member()) return info;
  throw UsageError(shown(request) + ": " + rank_name(topology_.rank) + " is not in process set " +
                       std::to_string(request.set.id) + ", which has the ranks " +
                       list_ranks(info->ranks),
                   UsageError::Kind::NotAMember);
}

/// Rethrows an error that this rank alone throws, with the rank in its text.
void Submitter::rethrow_as_of_this_rank(const UsageError& error) const {
  throw UsageError(rank_name(topology_.rank) + ": " + error.what(), error.kind());
}

Work Submitter::submit(Request request) try {
  const Preparation preparation = described(request);
  return push(queue_, submission_of(take_start(request), preparation));
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

std::vector<Work> Submitter::submit_group(std::vector<Request> requests) try {
  check_group(requests);
  Submission group;
  group.start.caller_waits = true;
  group.start.contributes = false;
  group.submitted = MonotonicClock::now();
  std::vector<Work> works;
  for (Request& request : requests) {
    group.start.caller_waits = group.start.caller_waits && request.caller_waits;
    group.start.contributes = group.start.contributes || request.contributes;
    group.start.digest += request.digest;
    const Preparation preparation = described(request);
    Submission& member =
        group.members.emplace_back(submission_of(take_start(request), preparation));
    group.input_bytes += member.input_bytes;
    group.caller_orders = group.caller_orders || member.caller_orders;
    if (member.deadline && (!group.deadline || *member.deadline < *group.deadline)) {
      group.deadline = member.deadline;
    }
    works.emplace_back(member.work);
  }
  sort_members(group.members);
  share_spec(group);
  queue_.push(std::move(group));
  return works;
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

/// Returns the event after which the buffers of the operation may be touched.
std::shared_ptr<const DeviceEvent> Submitter::ready_point(const Submission& submission) const try {
  return device_streams_->mark(submission.device_index, submission.start.stream);
} catch (const UsageError& error) {
  const OpSpec& spec = submission.spec();
  throw UsageError(display_name(spec, spec.name) + ": " + error.what());
}

/// Checks and describes the request.
Preparation Submitter::described(const Request& request) const {
  const std::shared_ptr<const SetInfo> set = set_of(request);
  const Topology& place = set ? set->topology : topology_;
  check_request(request, place.rank, place.size);
  OpSpec spec = spec_of(request);
  const bool needs_backend = set && request.refusal.empty();
  if (const Problem error = needs_backend ? backend_error(*set, spec) : std::nullopt) {
    refuse(request, *error);
  }
  leave_out_rows(spec, place.size);
  const bool has_buffers =
      request.output != nullptr && (request.input != nullptr || !request.contributes);
  if (request.symmetric && has_buffers) {
    const Start start{.input = request.input,
                      .output = request.output,
                      .contributes = request.contributes,
                      .refusal = request.refusal};
    spec.symmetric_place = symmetric_place(start, spec, heap_.get());
  }
  return {{.input_bytes = input_bytes(request),
           .output_bytes = written_bytes(request, place.rank, place.size),
           .splits = request.splits,
           .device_index = request.device.index,
           .is_lazy = request.lazy,
           .caller_orders = request.caller_orders},
          share(std::move(spec)),
          place.rank,
          request.symmetric,
          request.timeout};
}

/// Returns the spec of one start, which may refuse, or be at another place of the symmetric heap
/// than the last one.
SpecPtr Submitter::spec_of_start(const Start& start, const Preparation& preparation) const {
  const SpecPtr& spec = preparation.spec;
  const std::uint64_t place =
      preparation.is_symmetric ? symmetric_place(start, *spec, heap_.get()) : 0;
  if (place == spec->symmetric_place && start.refusal == spec->refusal) return spec;
  OpSpec other = *spec;
  other.symmetric_place = place;
  other.refusal = start.refusal;
  return share(std::move(other));
}

Preparation Submitter::prepare(Request request) try {
  if (request.kind == Collective::Join) throw UsageError("a join cannot be prepared");
  static_cast<void>(take_start(request));
  request.contributes = true;
  request.input = request.output;
  Preparation preparation = described(request);
  queue_.expect_open();
  preparation.name_use = queue_.names()->prepare(preparation.spec);
  return preparation;
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

Work Submitter::start(const Preparation& preparation, Start start) try {
  return push(queue_, submission_of(std::move(start), preparation));
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

Submission Submitter::submission_of(Start start, const Preparation& preparation) const {
  check_start(start, preparation);
  Submission submission;
  static_cast<Description&>(submission) = preparation;
  submission.key.spec = spec_of_start(start, preparation);
  const OpSpec& spec = submission.spec();
  const bool refuses = !spec.refusal.empty();
  if (refuses) {
    start.input = start.output = nullptr;
    start.written = {};
  }
  if (spec.symmetric() && !start.contributes) start.input = start.output;
  if (spec.kind == Collective::Reduce && spec.root != preparation.rank) start.output = nullptr;
  if (spec.kind == Collective::Broadcast) {
    if (spec.root != preparation.rank) start.input = nullptr;
    if (spec.root == preparation.rank && start.input == nullptr) start.input = start.output;
    if (start.input == start.output) submission.output_bytes = 0;  // the root's memory is only read
  }
  submission.start = std::move(start);
  // A timeout that the clock cannot hold is none.
  const auto now = MonotonicClock::now();
  submission.submitted = now;
  if (preparation.timeout.count() > 0 && preparation.timeout < TimePoint::max() - now) {
    submission.deadline = now + preparation.timeout;
  }
  // If there is no such backend, the ranks report that together.
  const bool has_data = !moves_no_data(spec.kind) && !refuses;
  if (spec.device != DeviceKind::Cpu && has_data && device_streams_) {
    submission.ready = ready_point(submission);
  }
  submission.work = std::make_shared<WorkState>(submission.key.spec, engine_, log_);
  return submission;
}

}  // namespace ronde

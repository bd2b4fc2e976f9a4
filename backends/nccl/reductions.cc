// SPDX-License-Identifier: Apache-2.0
// Allreduce and reducescatter, chunk by chunk. NCCL reduces a chunk that is a piece of a single
// tensor where it is; other chunks are packed into the fusion buffer and unpacked from it. What
// NCCL does not reduce as Ronde does (Note [What NCCL reduces]) travels by NCCL and is reduced by
// Ronde's kernels. A rank that adds or keeps nothing packs all the same: NCCL sees equal counts on
// all ranks.
#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <utility>

#include "backends/gpu/collectives.h"
#include "backends/nccl/operation.h"
#include "ronde/error.h"

namespace ronde::nccl {
namespace {

constexpr std::pair<DataType, DataTypeNumber> kTypes[] = {
    {DataType::U8, kUint8},    {DataType::I8, kInt8},     {DataType::I32, kInt32},
    {DataType::I64, kInt64},   {DataType::F16, kFloat16}, {DataType::BF16, kBfloat16},
    {DataType::F32, kFloat32}, {DataType::F64, kFloat64}};

/// Empty if NCCL lacks the type.
std::optional<DataTypeNumber> number_of(DataType dtype) {
  const auto* const found = std::ranges::find(kTypes, dtype, [](auto each) { return each.first; });
  return found == std::end(kTypes) ? std::nullopt : std::optional(found->second);
}

ReductionNumber number_of(ReduceOp op) {
  if (op == ReduceOp::Sum) return kSum;
  if (op == ReduceOp::Min) return kMin;
  if (op == ReduceOp::Max) return kMax;
  if (op == ReduceOp::Product) return kProduct;
  throw Error("NCCL does not reduce with " + std::string(to_string(op)));
}

/// How NCCL reduces, and elements get into its buffer and out of it.
///
/// Note [What NCCL reduces]
/// NCCL reduces integers, sums of all floating types, and products of f32 and f64, rank by rank in
/// its own order, and rounds half types after each step. Other elements travel by NCCL, and Ronde's
/// kernels reduce them in rank order, with the bits of the other backends, each rank a share:
/// - min and max of floating types, in which NCCL loses NaN;
/// - products of half types, which may overflow before they are complete;
/// - i16 and bool, which NCCL lacks;
/// - all floating types under NcclOptions::exact.
/// Twice (n - 1) / n of the bytes travel either way.
///
/// Note [Who scales]
/// Elements of a floating sum by NCCL are scaled before it, so that no sum overflows before its
/// division: as they are packed, or by NCCL (ncclAvg) in the average of a single tensor, which can
/// then be reduced in place. The choice depends on counts alone, as all ranks must call NCCL alike.
/// NCCL's factor has the type of the elements: an inexact one is applied in packing.
struct ReductionPlan {
  cuda::WireFormat wire;       ///< NCCL leaves `final` to the way out of the buffer
  Scaling pack = {};           ///< of elements on their way into the buffer
  bool nccl_averages = false;  ///< ncclAvg replaces `pack` in chunks of a single tensor

  /// How NCCL reduces a chunk. `is_single`: it is of a single tensor.
  struct Chunk {
    DataTypeNumber type;
    ReductionNumber number;
    bool is_plain;  ///< it can be reduced in the tensor itself
    cuda::KernelSet::How way_in;
  };
  Chunk chunk(bool is_single) const {
    const bool averages = is_single && nccl_averages;
    const Scaling scaling = averages ? Scaling{} : pack;
    return {
        number_of(wire.dtype).value(),
        averages ? kAverage : number_of(wire.op),
        is_single && wire.from == wire.dtype && wire.final.is_identity() && scaling.is_identity(),
        {.from = wire.from, .to = wire.dtype, .scaling = scaling, .op = wire.op}};
  }
  cuda::KernelSet::How way_out() const {
    return {.from = wire.dtype, .to = wire.from, .scaling = wire.final, .canonical = true};
  }
};

/// Empty if Ronde's kernels reduce.
std::optional<ReductionPlan> plan_reduction(const Work& work, const Reduction& reduction,
                                            std::optional<DataType> wire_dtype) {
  const std::size_t ranks = work.size();
  const bool exact = work.channel().options.exact;
  const DataType dtype = wire_dtype.value_or(reduction.dtype);
  const bool is_sum = reduction.op == ReduceOp::Sum;
  const bool is_product = reduction.op == ReduceOp::Product;
  if (!number_of(dtype)) return {};
  if (is_floating(dtype) && (exact || !(is_sum || (is_product && !is_half(dtype))))) return {};
  ReductionPlan plan;
  if (!is_floating(dtype) || !is_sum) {
    plan.wire = cuda::wire_format_of(reduction, wire_dtype);
    plan.pack = {plan.wire.pack_scale, 1.0};
    return plan;
  }
  plan.wire = {.from = reduction.dtype, .dtype = dtype};
  plan.pack = {reduction.prescale * reduction.final.factor, reduction.final.divisor};
  constexpr std::size_t kMostInHalf = 1 << 14;  // of which the reciprocal is normal as f16
  const bool is_exact = std::has_single_bit(ranks) && ranks <= kMostInHalf;
  plan.nccl_averages = !plan.pack.is_identity() && !wire_dtype &&
                       plan.pack.factor / plan.pack.divisor == 1.0 / static_cast<double>(ranks) &&
                       (is_exact || !is_half(dtype));
  return plan;
}

/// Collectives whose parts travel by NCCL, all queued at once: no step waits.
class InOrder final : public cuda::Collectives {
 public:
  explicit InOrder(const Work& work)
      : Collectives(work.resources(), work.counts().bytes, work.size(), work.rank(),
                    work.fusion_bytes() / (2 * kPartAlignment) * kPartAlignment),
        work_(work) {}

 private:
  Steps exchange(Pattern pattern, cuda::RankParts to, cuda::RankParts from,
                 std::size_t width) override {
    const std::size_t stride = to.each * width;
    const auto part = [stride](cuda::DevicePointer first, std::size_t rank) {
      return static_cast<std::byte*>(cuda::writable(first + rank * stride));
    };
    const bool gathers = pattern == Pattern::Gather;
    const cuda::DevicePointer arrivals = gathers ? packed() : other_half();
    if (gathers) {
      work_.call(work_.api().all_gather, part(packed(), own_), part(packed(), 0), stride, kUint8);
    } else {
      ++work_.counts().chunks_in_order;
      work_.call_together([&] {
        for (std::size_t i = 0; i < ranks_; ++i) {
          // Each begins with its own.
          const std::size_t receiver = (own_ + i) % ranks_;
          const std::size_t sender = (own_ + ranks_ - i) % ranks_;
          send(part(packed(), receiver), to.piece(receiver) * width, receiver);
          receive(part(arrivals, sender), from.piece(sender) * width, sender);
        }
      });
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank) parts_[rank] = arrivals + rank * stride;
    co_return;
  }

  void send(const std::byte* part, std::size_t bytes, std::size_t to) const {
    if (bytes > 0) work_.call(work_.api().send, part, bytes, kUint8, static_cast<int>(to));
  }
  void receive(std::byte* part, std::size_t bytes, std::size_t from) const {
    if (bytes > 0) work_.call(work_.api().recv, part, bytes, kUint8, static_cast<int>(from));
  }

  const Work& work_;
};

}  // namespace

void issue(const Work& work, const AllreduceCall& call) {
  const auto plan = plan_reduction(work, call.reduction(), call.wire_dtype);
  if (!plan) return static_cast<void>(InOrder(work).allreduce(call).poll());
  const std::size_t width = plan->wire.width();
  gpu::ChunkLayout layout(call.segments, work.fusion_bytes() / width, plan->wire.alignment());
  while (layout.next()) {
    work.counts().bytes += layout.extent() * width;
    const ReductionPlan::Chunk chunk = plan->chunk(layout.pieces().size() == 1);
    const gpu::Piece& first = layout.pieces().front();
    const Segment& segment = *first.segment;
    if (chunk.is_plain && segment.input != nullptr && segment.output != nullptr) {
      ++work.counts().direct_chunks;
      work.call(work.api().all_reduce, cuda::at(segment.input, first.offset, width),
                cuda::at(segment.output, first.offset, width), first.count, chunk.type,
                chunk.number);
      continue;
    }
    ++work.counts().packed_chunks;
    std::byte* const buffer = chunk.is_plain ? work.unregistered() : work.fusion();
    const cuda::DevicePointer packed = cuda::address_of(buffer);
    work.resources().move(cuda::moves_in(layout.pieces(), packed, plan->wire), chunk.way_in);
    work.call(work.api().all_reduce, buffer, buffer, layout.extent(), chunk.type, chunk.number);
    work.resources().move(cuda::moves_out(layout.pieces(), packed, plan->wire), plan->way_out());
  }
}

/// A chunk holds a piece of every rank's part, the same number of elements of each: parts that are
/// shorter leave some unused. Equal parts that are all in one chunk lie there as in the tensor.
void issue(const Work& work, const ReducescatterCall& call) {
  const auto plan = plan_reduction(work, call.reduction(), {});
  if (!plan) {
    work.counts().bytes += sum(call.counts) * size_of(call.dtype);
    return static_cast<void>(InOrder(work).reducescatter(call).poll());
  }
  const std::size_t width = plan->wire.width();
  // The result has a place behind the shares, as far into the buffer on every rank, as windows of
  // NCCL's ask for.
  const std::size_t unit = plan->wire.alignment();
  const std::size_t most = work.fusion_bytes() / (16 * (work.size() + 1)) * unit;
  const auto [shortest, longest] = std::ranges::minmax(call.counts);
  const ReductionPlan::Chunk chunk = plan->chunk(shortest == longest && longest <= most);
  for (std::size_t done = 0; done < longest; done += most) {
    const cuda::RankParts parts{call.counts, done, std::min(most, longest - done)};
    work.counts().bytes += parts.each * work.size() * width;
    if (chunk.is_plain && call.input != nullptr && call.output != nullptr) {
      ++work.counts().direct_chunks;
      return work.call(work.api().reduce_scatter, call.input, call.output, parts.each, chunk.type,
                       chunk.number);
    }
    ++work.counts().packed_chunks;
    std::byte* const packed = chunk.is_plain ? work.unregistered() : work.fusion();
    std::byte* const result = packed + work.size() * parts.each * width;
    work.resources().move(parts.moves_in(call.input, cuda::address_of(packed), plan->wire),
                          chunk.way_in);
    work.call(work.api().reduce_scatter, packed, result, parts.each, chunk.type, chunk.number);
    if (call.output == nullptr) continue;
    const cuda::KernelSet::Move out{result, cuda::at(call.output, done, size_of(plan->wire.from)),
                                    parts.piece(work.rank())};
    work.resources().move({&out, 1}, plan->way_out());
  }
}

}  // namespace ronde::nccl

// SPDX-License-Identifier: Apache-2.0
// Allreduce and reducescatter, chunk by chunk. NCCL reduces a chunk that is a piece of a single
// tensor where it is; other chunks are packed into the fusion buffer and unpacked from it. What
// NCCL does not reduce as Ronde does (Note [What NCCL reduces]) travels by NCCL and is reduced by
// Ronde's kernels: each rank gets its share of the chunk from every rank, reduces the shares in
// rank order, and an allreduce gathers the results. A rank that adds or keeps nothing packs all the
// same: NCCL sees equal counts on all ranks.
#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "backends/gpu/kernels/wire_format.h"
#include "backends/nccl/operation.h"
#include "ronde/error.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde::nccl {
namespace {

constexpr std::size_t kAlignment = 16;

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

/// How the elements of a reduction travel, and who reduces them.
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
/// Elements of a floating sum by NCCL are scaled before it, by one factor that includes the
/// division of an average, so that no sum overflows before its division. They are scaled as they
/// are packed; but in the average of a single tensor NCCL does it (ncclAvg), so that it can be
/// reduced in place. The choice depends on counts alone, as all ranks must call NCCL alike. NCCL's
/// factor has the type of the elements: one that is inexact in a half type (1/3 as bf16 is 0.2 %
/// too large) is applied in packing.
struct ReductionPlan {
  /// NCCL does not apply `reduce_scale`, and leaves `final` to the way out of the buffer.
  cuda::WireFormat wire;
  bool by_nccl = true;
  Scaling pack = {};           ///< of elements on their way into the buffer
  bool nccl_averages = false;  ///< ncclAvg replaces `pack` in chunks of a single tensor

  /// How NCCL reduces a chunk. `is_single`: it is of a single tensor.
  struct ByNccl {
    DataTypeNumber type;
    ReductionNumber number;
    bool averages;
    bool is_plain;  ///< it can be reduced in the tensor itself
  };
  ByNccl chunk(bool is_single) const {
    const bool averages = is_single && nccl_averages;
    return {number_of(wire.dtype).value(), averages ? kAverage : number_of(wire.op), averages,
            is_single && wire.from == wire.dtype && wire.final.is_identity() &&
                (pack.is_identity() || averages)};
  }
};

/// `exact`: NcclOptions::exact.
ReductionPlan plan_reduction(const Reduction& reduction, std::optional<DataType> wire_dtype,
                             std::size_t ranks, bool exact) {
  const DataType dtype = wire_dtype.value_or(reduction.dtype);
  const bool is_sum = reduction.op == ReduceOp::Sum;
  const bool is_product = reduction.op == ReduceOp::Product;
  ReductionPlan plan;
  plan.by_nccl = number_of(dtype).has_value() &&
                 (!is_floating(dtype) || (!exact && (is_sum || (is_product && !is_half(dtype)))));
  if (!plan.by_nccl || !is_floating(dtype) || !is_sum) {
    plan.wire = cuda::wire_format_of(reduction, wire_dtype);
    if (plan.by_nccl) plan.wire = cuda::in_steps(plan.wire);
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

/// What both have in common: chunks of a buffer that are packed, combined and unpacked.
class ReductionWork : public Work {
 protected:
  ReductionWork(std::shared_ptr<Channel> channel, const Placement& place,
                const Reduction& reduction, std::optional<DataType> wire_dtype, std::string doing)
      : Work(std::move(channel), place, std::move(doing)),
        plan_(plan_reduction(reduction, wire_dtype, size(), exact())) {}

  /// A chunk in the fusion buffer: a share of the elements for each rank. The result is as far into
  /// the buffer on every rank, as windows of NCCL's ask for.
  struct Shares {
    std::byte* packed = nullptr;    ///< this rank's elements, share after share
    std::byte* received = nullptr;  ///< the ranks' elements of this rank's share, then the result
    std::size_t elements = 0;       ///< of a share, those behind the last one included
    std::size_t bytes = 0;          ///< of a share
  };
  Shares lay_out(std::byte* buffer, std::size_t elements) const noexcept {
    const std::size_t bytes = elements * width();
    return {buffer, buffer + size() * bytes, elements, bytes};
  }
  /// Elements of a share where the ranks combine `elements`: shares begin where wide accesses may.
  std::size_t share_of(std::size_t elements) const noexcept {
    const std::size_t unit = plan_.wire.alignment();
    const std::size_t share = (elements + size() - 1) / size();
    return (share + unit - 1) / unit * unit;
  }
  /// The largest share that there is room for.
  std::size_t most_of_share() const noexcept {
    return fusion_bytes() / (2 * size() * kAlignment) * plan_.wire.alignment();
  }

  /// Queues the exchange of the shares, and the combining of this rank's.
  void combine(const Shares& shares) const {
    call_together([&] {
      for (std::size_t i = 0; i < size(); ++i) {
        // Each begins with its own.
        const std::size_t to = (rank() + i) % size();
        const std::size_t from = (rank() + size() - i) % size();
        call(api().send, shares.packed + to * shares.bytes, shares.bytes, kUint8,
             static_cast<int>(to));
        call(api().recv, shares.received + from * shares.bytes, shares.bytes, kUint8,
             static_cast<int>(from));
      }
    });
    const cuda::DevicePointer received = cuda::address_of(shares.received);
    resources().kernels().reduce(resources().stream(), received, {received, shares.bytes, size()},
                                 shares.elements, plan_.wire.reduction());
  }

  const ReductionPlan& plan() const noexcept { return plan_; }
  /// Bytes of an element in the tensors, and on its way between the ranks.
  /// @{
  std::size_t tensor_width() const noexcept { return size_of(plan_.wire.from); }
  std::size_t width() const noexcept { return plan_.wire.width(); }
  /// @}

  /// Queues the way into the buffer.
  void pack(const Moves& moves, bool is_scaled_by_nccl = false) const {
    move(moves, {.from = plan_.wire.from,
                 .to = plan_.wire.dtype,
                 .scaling = is_scaled_by_nccl ? Scaling{} : plan_.pack,
                 .op = plan_.wire.op});
  }
  /// And the one out of it. The ranks' own combining leaves it scaled, with the one NaN that there
  /// is.
  void unpack(const Moves& moves) const {
    move(moves, {.from = plan_.wire.dtype,
                 .to = plan_.wire.from,
                 .scaling = plan_.by_nccl ? plan_.wire.final : Scaling{},
                 .canonical = plan_.by_nccl});
  }

 private:
  const ReductionPlan plan_;
};

class Allreduce final : public ReductionWork {
 public:
  Allreduce(std::shared_ptr<Channel> channel, const AllreduceCall& call)
      : ReductionWork(std::move(channel), call.place, call.reduction(), call.wire_dtype,
                      "reducing " + std::to_string(call.segments.size()) + " tensor(s) of " +
                          elements_text(total_elements(call.segments), call.dtype)),
        segments_(call.segments.begin(), call.segments.end()),
        layout_(segments_, plan().by_nccl ? fusion_bytes() / width() : most_of_share() * size(),
                plan().wire.alignment()) {}

 private:
  void issue() override {
    while (layout_.next()) {
      counts().bytes += layout_.extent() * width();
      if (plan().by_nccl) {
        reduce_by_nccl();
      } else {
        combine_chunk();
      }
    }
  }

  void reduce_by_nccl() const {
    const ReductionPlan::ByNccl op = plan().chunk(layout_.pieces().size() == 1);
    const gpu::Piece& first = layout_.pieces().front();
    const Segment& segment = *first.segment;
    if (op.is_plain && segment.input != nullptr && segment.output != nullptr) {
      ++counts().direct_chunks;
      return call(api().all_reduce, cuda::at(segment.input, first.offset, width()),
                  cuda::at(segment.output, first.offset, width()), first.count, op.type, op.number);
    }
    ++counts().packed_chunks;
    std::byte* const buffer = op.is_plain ? unregistered() : fusion();
    pack(into(buffer), op.averages);
    call(api().all_reduce, buffer, buffer, layout_.extent(), op.type, op.number);
    unpack(out_of(buffer));
  }

  void combine_chunk() const {
    ++counts().chunks_in_order;
    const Shares shares = lay_out(fusion(), share_of(layout_.extent()));
    pack(into(shares.packed));
    combine(shares);
    call(api().all_gather, shares.received, shares.packed, shares.elements * width(), kUint8);
    unpack(out_of(shares.packed));
  }

  Moves into(std::byte* buffer) const {
    return moves_in(layout_.pieces(), cuda::address_of(buffer), tensor_width(), width());
  }
  Moves out_of(const std::byte* buffer) const {
    return moves_out(layout_.pieces(), cuda::address_of(buffer), tensor_width(), width());
  }

  const std::vector<Segment> segments_;
  gpu::ChunkLayout layout_;
};

/// A chunk holds a piece of every rank's part, the same number of elements of each: parts that are
/// shorter leave some unused.
class Reducescatter final : public ReductionWork {
 public:
  Reducescatter(std::shared_ptr<Channel> channel, const ReducescatterCall& call)
      : ReductionWork(std::move(channel), call.place, call.reduction(), std::nullopt,
                      "reducing and scattering " +
                          elements_text(std::accumulate(call.counts.begin(), call.counts.end(),
                                                        std::size_t{0}),
                                        call.dtype)),
        input_(call.input),
        output_(call.output),
        counts_(call.counts.begin(), call.counts.end()) {}

 private:
  void issue() override {
    // What NCCL reduces needs a place for the result behind the shares.
    const std::size_t most =
        plan().by_nccl ? fusion_bytes() / ((size() + 1) * width()) : most_of_share();
    const auto [shortest, longest] = std::minmax_element(counts_.begin(), counts_.end());
    for (std::size_t done = 0; done < *longest; done += most) {
      const std::size_t share = std::min(most, *longest - done);
      counts().bytes += share * size() * width();
      if (plan().by_nccl) {
        reduce_by_nccl({counts_, done, share}, *shortest == *longest && *longest <= most);
      } else {
        combine_chunk({counts_, done, share_of(share * size())});
      }
    }
  }

  /// `is_single`: all is in one chunk, where equal parts lie as in the tensor. Ranks without memory
  /// for it see it alike.
  void reduce_by_nccl(const cuda::RankParts& parts, bool is_single) const {
    const ReductionPlan::ByNccl op = plan().chunk(is_single);
    if (op.is_plain && input_ != nullptr && output_ != nullptr) {
      ++counts().direct_chunks;
      return call(api().reduce_scatter, input_, output_, parts.each, op.type, op.number);
    }
    ++counts().packed_chunks;
    const Shares shares = lay_out(op.is_plain ? unregistered() : fusion(), parts.each);
    pack(into(shares, parts), op.averages);
    call(api().reduce_scatter, shares.packed, shares.received, parts.each, op.type, op.number);
    keep_part(shares, parts);
  }

  void combine_chunk(const cuda::RankParts& parts) const {
    ++counts().chunks_in_order;
    const Shares shares = lay_out(fusion(), parts.each);
    pack(into(shares, parts));
    combine(shares);
    keep_part(shares, parts);
  }

  Moves into(const Shares& shares, const cuda::RankParts& parts) const {
    return parts.moves_in(input_, tensor_width(), cuda::address_of(shares.packed), width());
  }

  void keep_part(const Shares& shares, const cuda::RankParts& parts) const {
    if (output_ == nullptr) return;
    unpack({{shares.received, cuda::at(output_, parts.done, tensor_width()), parts.piece(rank())}});
  }

  const void* const input_;
  void* const output_;
  const std::vector<std::size_t> counts_;
};

}  // namespace

std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const AllreduceCall& call) {
  return std::make_shared<Allreduce>(std::move(channel), call);
}
std::shared_ptr<Work> make_work(std::shared_ptr<Channel> channel, const ReducescatterCall& call) {
  return std::make_shared<Reducescatter>(std::move(channel), call);
}

}  // namespace ronde::nccl

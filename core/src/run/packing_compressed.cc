// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "core/src/kernels/elementwise.h"
#include "core/src/run/packing_streams.h"
#include "ronde/kernels.h"

namespace ronde {

/// An allreduce with a wire_dtype. The packed backend could reduce halves only as f32, twice as
/// large: so it moves bytes alone. Every rank gets its part of the chunk from each, reduces the
/// part in the order of ranks, and gives it to all. When it does so depends on when the parts come:
/// it has one chunk in flight (Note [Order of chunks]).
class PackingBackend::CompressedAllreduce final : public SegmentStream {
 public:
  CompressedAllreduce(PackingBackend& owner, const AllreduceCall& call)
      : SegmentStream(owner, call.segments, kWidth, most_elements(owner), 1),
        call_(call),
        ranks_(static_cast<std::size_t>(owner.size_)),
        reduction_({.dtype = *call.wire_dtype, .op = call.op, .final = call.final}),
        inputs_(ranks_, nullptr) {}

 private:
  static constexpr std::size_t kWidth = 2;  ///< bytes of a half

  /// The buffer holds a chunk, and behind it this rank's part of it from every rank.
  static std::size_t most_elements(const PackingBackend& owner) {
    // The parts of a chunk may be an element larger than even ones.
    const std::size_t rest = owner.slot_bytes_ / kWidth - static_cast<std::size_t>(owner.size_);
    return std::min(rest / 2, owner.chunk_bytes_ / kWidth);
  }

  std::size_t extra_bytes(std::size_t count) const override { return (count + ranks_) * kWidth; }

  bool reads() const override { return true; }

  void pack(std::byte* to, const Segment& segment, std::size_t offset, std::size_t count) override {
    if (segment.input == nullptr) {
      fill_neutral(to, count, *call_.wire_dtype, call_.op, false);
    } else {
      best_kernels().narrow(to, advanced(segment.input, offset * size_of(call_.dtype)), count,
                            conversion({call_.prescale, 1.0}), Store::Regular);
    }
  }

  void unpack(const std::byte* from, const Segment& segment, std::size_t offset,
              std::size_t count) override {
    best_kernels().widen(advanced(segment.output, offset * size_of(call_.dtype)), from, count,
                         conversion({}), Store::Regular);
  }

  Conversion conversion(const Scaling& scaling) const {
    return {.half = *call_.wire_dtype, .full = call_.dtype, .scaling = scaling};
  }

  std::unique_ptr<Operation> launch(Slot& chunk) override {
    part_bytes_ = even_counts(chunk.count, ranks_);
    for (std::size_t& part : part_bytes_) part *= kWidth;
    own_bytes_.assign(ranks_, part_bytes_[owner_.own()]);
    parts_ = chunk.memory + chunk.count * kWidth;
    return owner_.packed_->alltoall({.input = chunk.memory,
                                     .output = parts_,
                                     .send_counts = part_bytes_,
                                     .receive_counts = own_bytes_,
                                     .largest_count = part_bytes_.front(),
                                     .dtype = DataType::U8});
  }

  std::unique_ptr<Operation> continue_chunk(Slot& chunk) override {
    if (parts_ == nullptr) return nullptr;
    const std::size_t bytes = own_bytes_.front();
    for (std::size_t rank = 0; rank < ranks_; ++rank) inputs_[rank] = parts_ + rank * bytes;
    best_kernels().reduce(parts_, inputs_, bytes / kWidth, reduction_, Store::Regular);
    return owner_.packed_->allgather({.input = std::exchange(parts_, nullptr),
                                      .output = chunk.memory,
                                      .counts = part_bytes_,
                                      .dtype = DataType::U8});
  }

  const AllreduceCall call_;
  const std::size_t ranks_;
  const Reduction reduction_;
  std::vector<const void*> inputs_;      ///< by rank
  std::vector<std::size_t> part_bytes_;  ///< of the chunk, by rank
  std::vector<std::size_t> own_bytes_;   ///< what comes from every rank
  std::byte* parts_ = nullptr;  ///< this rank's part of every rank's chunk; null: already reduced
};

std::unique_ptr<Operation> PackingBackend::compressed_allreduce(const AllreduceCall& call) {
  return std::make_unique<CompressedAllreduce>(*this, call);
}

}  // namespace ronde

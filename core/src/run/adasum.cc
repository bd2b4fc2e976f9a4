// SPDX-License-Identifier: Apache-2.0
// Adasum as a chain of backend operations: Note [Adasum]. Tensors are worked on in batches that fit
// the scratch memory.
#include "core/src/run/adasum.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/src/base/steps.h"
#include "core/src/kernels/elementwise.h"
#include "ronde/division.h"
#include "ronde/error.h"
#include "ronde/kernels.h"
#include "ronde/plugin/segment_cursor.h"

namespace ronde {
namespace {

constexpr std::size_t kCacheLine = 64;

/// The factors of Note [Adasum].
Blend factors_of(const Products& products) {
  if (products.first == 0.0 || products.second == 0.0) return {};
  return {1.0 - products.mixed / (2.0 * products.first),
          1.0 - products.mixed / (2.0 * products.second)};
}

class Adasum final : public SteppedOperation {
 public:
  Adasum(Backend& backend, const AllreduceCall& call, int rank, int size, FusionBuffer& scratch)
      : backend_(backend),
        call_(call),
        own_(static_cast<std::size_t>(rank)),
        ranks_(static_cast<std::size_t>(size)),
        scratch_(scratch),
        moved_(call.effective_wire_dtype()),
        computed_(packed_dtype(call.dtype, true)),
        left_(call.segments) {
    begin(run());
  }

 private:
  Steps run() {
    while (!left_.empty()) {
      lay_out(next_batch());
      step_ = scatter();
      co_await finished();
      prepare_vectors();
      for (distance_ = 1; distance_ < ranks_; distance_ *= 2) {
        step_ = multiply();
        co_await finished();
        combine();
      }
      step_ = gather();
      co_await finished();
      unpack();
    }
  }

  /// Waits until `step_` has ended.
  Steps finished() {
    co_await until_finished(*step_);
    step_.reset();
  }

  std::size_t moved_bytes(std::size_t elements) const { return elements * size_of(moved_); }
  std::size_t computed_bytes(std::size_t elements) const { return elements * size_of(computed_); }
  EvenParts cut(const Segment& tensor) const { return {tensor.count, ranks_}; }

  /// Returns a bound for one more tensor, equal on all ranks, so that they choose the same tensors.
  std::size_t scratch_bytes(const Segment& tensor) const {
    const std::size_t own_parts = cut(tensor).count(0) * ranks_;
    const std::size_t converted = moved_ == computed_ ? 0 : computed_bytes(own_parts);
    const std::size_t sums = sizeof(Products) * (ranks_ / 2) * ranks_;
    return moved_bytes(tensor.count) + moved_bytes(own_parts) + converted + sums;
  }

  /// Chooses the next tensors to work on, at least one, and returns memory for them.
  std::byte* next_batch() {
    std::size_t bytes = 4 * kCacheLine;
    std::size_t tensors = 0;
    for (; tensors < left_.size(); ++tensors) {
      const std::size_t more = scratch_bytes(left_[tensors]);
      if (tensors > 0 && more > scratch_.limit() - std::min(bytes, scratch_.limit())) break;
      bytes += more;
    }
    batch_ = left_.first(tensors);
    left_ = left_.subspan(tensors);
    large_.reset();
    try {
      return (bytes > scratch_.limit() ? large_.emplace(bytes) : scratch_).reserve(bytes);
    } catch (const std::bad_alloc&) {
      throw Error("adasum has no memory for the " + std::to_string(bytes) +
                  " bytes in which it combines " + std::to_string(tensors) + " tensors of " +
                  std::to_string(total_elements(batch_)) + " elements of " +
                  std::string(to_string(call_.dtype)) +
                  ". Give this rank more memory, or smaller tensors to it; several tensors take "
                  "RONDE_FUSION_BYTES together at most");
    }
  }

  void lay_out(std::byte* memory) {
    counts_.assign(ranks_, 0);
    own_offsets_.clear();
    for (const Segment& tensor : batch_) {
      own_offsets_.push_back(counts_[own_]);
      for (std::size_t rank = 0; rank < ranks_; ++rank) counts_[rank] += cut(tensor).count(rank);
    }
    own_counts_.assign(ranks_, counts_[own_]);
    const std::size_t all_parts = counts_[own_] * ranks_;
    whole_ = memory;
    parts_ = whole_ + rounded_up(moved_bytes(total_elements(batch_)), kCacheLine);
    std::byte* const end = parts_ + rounded_up(moved_bytes(all_parts), kCacheLine);
    vectors_ = moved_ == computed_ ? parts_ : end;
    sums_ = moved_ == computed_ ? end : end + rounded_up(computed_bytes(all_parts), kCacheLine);
  }

  /// Sends every rank its parts of this rank's tensors.
  std::unique_ptr<Operation> scatter() {
    for_each_part([&](std::byte* packed, const Segment& tensor, std::size_t offset,
                      std::size_t count) { pack(packed, tensor, offset, count); });
    return backend_.alltoall({.input = whole_,
                              .output = parts_,
                              .send_counts = counts_,
                              .receive_counts = own_counts_,
                              .largest_count = counts_.front(),
                              .dtype = moved_,
                              .place = call_.place});
  }

  /// Calls `visit` with each part of the batch, where it lies in `whole_` and in its tensor.
  template <typename Visit>
  void for_each_part(Visit visit) const {
    std::byte* packed = whole_;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      for (const Segment& tensor : batch_) {
        const std::size_t count = cut(tensor).count(rank);
        if (count > 0) visit(packed, tensor, cut(tensor).offset(rank), count);
        packed += moved_bytes(count);
      }
    }
  }

  void pack(std::byte* to, const Segment& tensor, std::size_t offset, std::size_t count) const {
    if (tensor.input == nullptr) {
      std::memset(to, 0, moved_bytes(count));
      return;
    }
    const std::byte* const from =
        static_cast<const std::byte*>(tensor.input) + offset * size_of(call_.dtype);
    if (call_.wire_dtype) {
      best_kernels().narrow(to, from, count, conversion({call_.prescale, 1.0}), Store::Regular);
    } else {
      std::memcpy(to, from, moved_bytes(count));
    }
  }

  void unpack() const {
    for_each_part([&](std::byte* packed, const Segment& tensor, std::size_t offset,
                      std::size_t count) {
      if (tensor.output == nullptr) return;
      std::byte* const to = static_cast<std::byte*>(tensor.output) + offset * size_of(call_.dtype);
      if (call_.wire_dtype) {
        best_kernels().widen(to, packed, count, conversion({}), Store::Regular);
      } else {
        std::memcpy(to, packed, moved_bytes(count));
      }
    });
  }

  Conversion conversion(const Scaling& scaling) const {
    return {.half = moved_, .full = call_.dtype, .scaling = scaling};
  }

  /// Converts what arrived to the type in which Adasum computes.
  void prepare_vectors() {
    const std::size_t count = counts_[own_] * ranks_;
    const Scaling scaling{call_.prescale, 1.0};
    if (call_.wire_dtype) {
      best_kernels().widen(vectors_, parts_, count, conversion({}), Store::Regular);
    } else if (moved_ != computed_ || !scaling.is_identity()) {
      pack_elements(vectors_, parts_, count, call_.dtype, scaling, true);
    }
  }

  /// Returns this rank's part of `tensor` in the vector that is accumulated at `rank`.
  std::byte* vector(std::size_t rank, std::size_t tensor) const {
    return vectors_ + computed_bytes(rank * counts_[own_] + own_offsets_[tensor]);
  }

  /// Calls `visit(first, second)` with the ranks whose vectors a level combines.
  template <typename Visit>
  void for_each_pair(Visit visit) const {
    for (std::size_t first = 0; first + distance_ < ranks_; first += 2 * distance_) {
      visit(first, first + distance_);
    }
  }

  /// Computes the dot products of a level, and gathers those of all ranks.
  std::unique_ptr<Operation> multiply() {
    products_.clear();
    for_each_pair([&](std::size_t first, std::size_t second) {
      for (std::size_t t = 0; t < batch_.size(); ++t) {
        products_.push_back(best_kernels().products(vector(first, t), vector(second, t),
                                                    cut(batch_[t]).count(own_), computed_));
      }
    });
    // The backend may not know f64: the sums are sent as bytes of a type that it knows.
    const std::size_t bytes = products_.size() * sizeof(Products);
    sum_counts_.assign(ranks_, bytes / size_of(moved_));
    return backend_.allgather({.input = products_.data(),
                               .output = sums_,
                               .counts = sum_counts_,
                               .dtype = moved_,
                               .place = call_.place});
  }

  /// Sums the products of all ranks, in their order.
  Products sum_of(std::size_t number) const {
    Products sum;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      Products part;
      const std::size_t place = rank * products_.size() + number;
      std::memcpy(&part, sums_ + place * sizeof part, sizeof part);
      sum.mixed += part.mixed;
      sum.first += part.first;
      sum.second += part.second;
    }
    return sum;
  }

  void combine() {
    std::size_t number = 0;
    for_each_pair([&](std::size_t first, std::size_t second) {
      for (std::size_t t = 0; t < batch_.size(); ++t) {
        std::byte* const result = vector(first, t);
        best_kernels().blend(result, result, vector(second, t), cut(batch_[t]).count(own_),
                             computed_, factors_of(sum_of(number++)));
      }
    });
  }

  /// Sends this rank's parts of the results to all ranks.
  std::unique_ptr<Operation> gather() {
    const std::size_t count = counts_[own_];
    if (call_.wire_dtype) {
      best_kernels().narrow(parts_, vectors_, count, conversion(call_.final), Store::Regular);
    } else {
      unpack_elements(parts_, vectors_, count, call_.dtype, call_.final, true);
    }
    return backend_.allgather({.input = parts_,
                               .output = whole_,
                               .counts = counts_,
                               .dtype = moved_,
                               .place = call_.place});
  }

  Backend& backend_;
  const AllreduceCall call_;
  const std::size_t own_;
  const std::size_t ranks_;
  FusionBuffer& scratch_;
  const DataType moved_;
  const DataType computed_;
  std::span<const Segment> left_;         ///< tensors that are not begun yet
  std::span<const Segment> batch_;        ///< tensors in progress
  std::optional<FusionBuffer> large_;     ///< for a batch that does not fit into the scratch
  std::vector<std::size_t> counts_;       ///< elements of the batch that are each rank's part
  std::vector<std::size_t> own_counts_;   ///< of this rank's part, once for each rank
  std::vector<std::size_t> own_offsets_;  ///< of each tensor within this rank's part
  std::vector<std::size_t> sum_counts_;   ///< what each rank adds to `sums_`, in `moved_`
  std::vector<Products> products_;        ///< of this rank's parts, by pair and tensor
  std::byte* whole_ = nullptr;            ///< the batch, one rank's part behind the other
  std::byte* parts_ = nullptr;            ///< this rank's part of every rank's batch
  std::byte* vectors_ = nullptr;          ///< the same in `computed_`
  std::byte* sums_ = nullptr;             ///< `products_` of all ranks
  std::size_t distance_ = 1;              ///< between the ranks that the level combines
  std::unique_ptr<Operation> step_;       ///< destroyed before the memory that it works on
};

}  // namespace

std::unique_ptr<Operation> adasum(Backend& backend, const AllreduceCall& call, int rank, int size,
                                  FusionBuffer& scratch) {
  return std::make_unique<Adasum>(backend, call, rank, size, scratch);
}

}  // namespace ronde

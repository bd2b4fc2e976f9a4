// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ronde/process_set.h"

namespace ronde {
namespace detail {
struct SamplerLedger;
}

/// Treatment of the samples left over when the dataset does not divide by the ranks: Pad fills up
/// from the beginning of the permutation, Drop leaves them out.
enum class Remainder { Pad, Drop };

/// How DistributedSampler deals. Equal on all ranks except for `rank`.
struct DistributedSamplerOptions {
  std::uint64_t seed = 0;                ///< of the permutations
  bool shuffle = true;                   ///< false: every epoch has the order of the dataset
  Remainder remainder = Remainder::Pad;  ///< when the dataset does not divide by the ranks
  int rank = -1;                         ///< this rank; -1 takes it from `process_set`
  int size = -1;                         ///< the number of ranks; -1 takes it from `process_set`
  ProcessSet process_set = {};           ///< the ranks that share the samples, by default all
};

/// Deals the samples of a dataset to the ranks, for LibTorch's DataLoader: position k of the
/// epoch's permutation goes to rank k mod N, so that N ranks with batches of b see in each step
/// the same samples as one rank with batches of N*b. All ranks get equally many.
///
/// The permutation depends on (seed, epoch, dataset size) alone, on every platform: a Fisher-Yates
/// shuffle driven by std::mt19937_64. The first begin() of a loader is epoch 0, and each later one
/// the next epoch.
///
/// Copies share their state: set_epoch reaches the DataLoader's copy. Thread-safety: none; use it
/// on the thread that iterates.
class DistributedSampler : public torch::data::samplers::Sampler<std::vector<std::size_t>> {
 public:
  /// Throws UsageError for an empty dataset, fewer samples than ranks with Remainder::Drop, a rank
  /// not below `size`, or one outside the process set that `rank` or `size` is taken from.
  explicit DistributedSampler(std::size_t dataset_size, DistributedSamplerOptions options = {});

  /// Starts the next epoch (the loader's begin() calls this), or the one that set_epoch or load
  /// asked for. `new_size` replaces the size of the dataset. Call it before next(). In an elastic
  /// job the ranks are those of the present group; before the first, the sampler may be
  /// constructed.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  /// Returns up to `batch_size` indices of this rank; nullopt at the end of the epoch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Writes seed, epoch, position and dataset size.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Writes the position of your loop instead (samples of this epoch, over all ranks): a loader
  /// with workers prefetches, so that position() is ahead of the loop.
  void save(torch::serialize::OutputArchive& archive, std::size_t position) const;

  /// Makes the next begin() start at the saved epoch and position, also with another number of
  /// ranks, or at the next epoch if the saved one was finished. Throws UsageError if seed, shuffle
  /// or dataset size differ from this sampler's.
  void load(torch::serialize::InputArchive& archive) override;

  /// Makes the next begin() start `epoch` after its first `position` samples, counted over all
  /// ranks.
  void set_epoch(std::size_t epoch, std::size_t position = 0);

  /// Returns the epoch in progress, or the next one before the first begin() and after set_epoch or
  /// load.
  std::size_t epoch() const noexcept;

  /// Returns the number of samples of this epoch that all ranks together have got.
  std::size_t position() const noexcept;

  /// Returns the number of samples this rank gets in a whole epoch.
  std::size_t samples_per_rank() const noexcept;

 private:
  friend struct detail::SamplerLedger;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ronde

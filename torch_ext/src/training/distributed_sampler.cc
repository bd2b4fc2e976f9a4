// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/distributed_sampler.h"

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <string>

#include "ronde/error.h"
#include "ronde/reform.h"
#include "ronde/ronde.h"
#include "ronde/torch/checkpoint.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/training/permutation.h"
#include "torch_ext/src/training/sampler_ledger.h"

namespace ronde {
namespace {

[[noreturn]] void refuse_sampler(const std::string& text) {
  throw UsageError(detail::rank_prefix() + "ronde::DistributedSampler" + text);
}

void write(torch::serialize::OutputArchive& archive, const std::string& key, std::uint64_t value) {
  archive.write(key, c10::IValue(static_cast<std::int64_t>(value)));
}

std::uint64_t read(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value) || !value.isInt()) {
    refuse_sampler("::load: the archive has no number \"" + key +
                   "\", so it was not written by DistributedSampler::save");
  }
  return static_cast<std::uint64_t>(value.toInt());
}

void require_equal(const std::string& what, std::uint64_t saved, std::uint64_t here) {
  if (saved == here) return;
  refuse_sampler("::load: the saved " + what + " is " + std::to_string(saved) +
                 ", this sampler's is " + std::to_string(here) +
                 "; the saved position means nothing then. Construct the sampler as it was when "
                 "it was saved");
}

}  // namespace

/// Deals global positions [start, end) of the epoch to ranks k mod size. The range divides by the
/// ranks, so all get equally many.
struct DistributedSampler::State {
  std::size_t dataset_size = 0;
  DistributedSamplerOptions options;
  bool follows_rank = false, follows_size = false;  // the process set's
  std::size_t ranks = 1;
  bool knows_ranks = false;  // not before the first group
  std::optional<EpochPlace> next_place = EpochPlace{};
  std::size_t epoch = 0;
  std::size_t start = 0;
  std::size_t end = 0;
  std::size_t taken = 0;  // by this rank
  std::vector<std::size_t> order;
  bool is_recorded = false;      // by a SamplerLedger
  std::deque<EpochPlace> dealt;  // places behind batches that no step has used

  // The ranks are those of the group that there is now: elastic jobs have several.
  void find_ranks() {
    const ProcessSet set = options.process_set;
    if (follows_rank) options.rank = rank_in(set).value();
    if (follows_size) options.size = static_cast<int>(ranks_of(set).size());
    if (options.rank >= options.size) {
      refuse_sampler(": rank " + std::to_string(options.rank) + " is not below size " +
                     std::to_string(options.size));
    }
    ranks = static_cast<std::size_t>(options.size);
    knows_ranks = true;
    resize(dataset_size);
  }

  // Returns the end of an epoch that continues at `from`.
  std::size_t end_from(std::size_t from) const {
    const std::size_t left = dataset_size - std::min(from, dataset_size);
    const bool pads = options.remainder == Remainder::Pad;
    return from + (left + (pads ? ranks - 1 : 0)) / ranks * ranks;
  }

  // Returns this rank's i-th global position.
  std::size_t global_position(std::size_t i) const {
    const std::size_t own = static_cast<std::size_t>(options.rank);
    const std::size_t first = start + (own + ranks - start % ranks) % ranks;
    return first + i * ranks;
  }

  void begin(const EpochPlace& place) {
    epoch = place.epoch;
    start = place.position;
    end = end_from(start);
    taken = 0;
    if (options.shuffle) {
      order = detail::permutation(dataset_size, options.seed, epoch);
    } else {
      order.resize(dataset_size);
      std::iota(order.begin(), order.end(), std::size_t{0});
    }
  }

  // Maps a place behind an epoch's last sample to the beginning of the next epoch.
  EpochPlace next_begin() const {
    if (!next_place) return {epoch + 1, 0};
    const EpochPlace& asked = *next_place;
    const bool finished = asked.position > 0 && end_from(asked.position) == asked.position;
    return finished ? EpochPlace{asked.epoch + 1, 0} : asked;
  }

  void resize(std::size_t size) {
    if (size == 0) refuse_sampler(": the dataset is empty");
    if (size < ranks && options.remainder == Remainder::Drop) {
      refuse_sampler(": " + std::to_string(size) + " samples cannot be dealt to " +
                     std::to_string(ranks) + " ranks with Remainder::Drop. Use Remainder::Pad");
    }
    dataset_size = size;
  }

  EpochPlace place() const {
    return next_place ? next_begin() : EpochPlace{epoch, start + taken * ranks};
  }
};

DistributedSampler::DistributedSampler(std::size_t dataset_size, DistributedSamplerOptions options)
    : state_(std::make_shared<State>()) {
  State& state = *state_;
  state.options = options;
  state.follows_rank = options.rank < 0;
  state.follows_size = options.size < 0;
  state.dataset_size = dataset_size;
  state.resize(dataset_size);
  const bool needs_group = state.follows_rank || state.follows_size;
  if (needs_group && !is_initialized()) return;  // until reset()
  if (needs_group) detail::check_member("ronde::DistributedSampler", options.process_set);
  state.find_ranks();
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  State& state = *state_;
  if (is_elastic() || !state.knows_ranks) state.find_ranks();
  if (new_size) state.resize(*new_size);
  state.begin(state.next_begin());
  state.next_place.reset();
  state.dealt.clear();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  State& state = *state_;
  std::vector<std::size_t> batch;
  while (batch.size() < batch_size) {
    const std::size_t position = state.global_position(state.taken);
    if (position >= state.end) break;
    batch.push_back(state.order[position % state.dataset_size]);
    ++state.taken;
  }
  if (batch.empty()) return std::nullopt;
  if (state.is_recorded) state.dealt.push_back(state.place());
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  save(archive, position());
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive,
                              std::size_t position) const {
  write(archive, "epoch", epoch());
  write(archive, "position", position);
  write(archive, "dataset_size", state_->dataset_size);
  write(archive, "seed", state_->options.seed);
  write(archive, "shuffle", state_->options.shuffle ? 1 : 0);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  require_equal("dataset size", read(archive, "dataset_size"), state_->dataset_size);
  require_equal("seed", read(archive, "seed"), state_->options.seed);
  require_equal("shuffle", read(archive, "shuffle"), state_->options.shuffle ? 1 : 0);
  set_epoch(read(archive, "epoch"), read(archive, "position"));
}

void DistributedSampler::set_epoch(std::size_t epoch, std::size_t position) {
  state_->next_place = EpochPlace{epoch, position};
}

std::size_t DistributedSampler::epoch() const noexcept {
  return state_->place().epoch;
}

std::size_t DistributedSampler::position() const noexcept {
  return state_->place().position;
}

std::size_t DistributedSampler::samples_per_rank() const noexcept {
  return state_->end_from(0) / state_->ranks;
}

void detail::SamplerLedger::regroup(DistributedSampler& sampler) {
  sampler.state_->find_ranks();
}

void detail::SamplerLedger::record(DistributedSampler& sampler) {
  sampler.state_->is_recorded = true;
}

std::size_t detail::SamplerLedger::unused(const DistributedSampler& sampler) {
  return sampler.state_->dealt.size();
}

EpochPlace detail::SamplerLedger::use(DistributedSampler& sampler, std::size_t batches) {
  std::deque<EpochPlace>& dealt = sampler.state_->dealt;
  const EpochPlace place = dealt.at(batches - 1);
  dealt.erase(dealt.begin(), dealt.begin() + static_cast<std::ptrdiff_t>(batches));
  return place;
}

BatchShare share_batch(std::int64_t total, std::int64_t largest, ProcessSet process_set) {
  detail::check_member("ronde::share_batch", process_set);
  const auto ranks = static_cast<std::int64_t>(ranks_of(process_set).size());
  if (largest < 1 || total < ranks) {
    throw UsageError(detail::rank_prefix(process_set) + "ronde::share_batch: " +
                     std::to_string(total) + " samples cannot be divided among " +
                     std::to_string(ranks) + " ranks in batches of at most " +
                     std::to_string(largest) + ". Give at least one sample a rank");
  }
  // Rounds to whole samples for each rank, which equal passes must divide.
  const std::int64_t whole = (2 * total + ranks) / (2 * ranks);
  std::int64_t passes = (whole + largest - 1) / largest;
  if (total % ranks == 0) {
    while (whole % passes != 0) ++passes;
  }
  BatchShare share;
  share.passes = static_cast<int>(passes);
  share.batch = std::max<std::int64_t>(1, (2 * total + ranks * passes) / (2 * ranks * passes));
  share.batch = std::min(share.batch, largest);
  share.total = share.batch * passes * ranks;
  share.rate_factor = static_cast<double>(share.total) / static_cast<double>(total);
  return share;
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "ronde/figures.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/src/base/text.h"

namespace ronde {
namespace {

constexpr unsigned kBinBits = 3;  // an octave has 2^3 bins
constexpr std::uint64_t kBins = std::uint64_t{1} << kBinBits;

/// Below 8 ns a bin has one value; above, the three bits behind the leading one choose it.
std::size_t bin_of(std::uint64_t ns) {
  if (ns < kBins) return static_cast<std::size_t>(ns);
  const auto exponent = static_cast<unsigned>(std::bit_width(ns)) - 1 - kBinBits;
  return static_cast<std::size_t>(exponent * kBins + (ns >> exponent));
}

/// The largest value in the bin.
std::int64_t edge_of(std::size_t bin) {
  if (bin < kBins) return static_cast<std::int64_t>(bin);
  const auto exponent = static_cast<unsigned>(bin / kBins - 1);
  const std::uint64_t leading = bin % kBins + kBins;
  return static_cast<std::int64_t>(((leading + 1) << exponent) - 1);
}

/// Times of operations that wait at the same time add up to more than a clock shows: the sum stops
/// at a number that doubles and further sums can have.
std::int64_t sum_of(std::int64_t a, std::int64_t b) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  return static_cast<std::int64_t>(
      std::min(kMost, static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b)));
}

}  // namespace

void Distribution::add(std::int64_t ns) {
  ns = std::max<std::int64_t>(ns, 0);
  const std::size_t bin = bin_of(static_cast<std::uint64_t>(ns));
  if (bin >= bins_.size()) bins_.resize(bin + 1);
  ++bins_[bin];
  ++count_;
  total_ns_ = sum_of(total_ns_, ns);
  largest_ns_ = std::max(largest_ns_, ns);
}

void Distribution::merge(const Distribution& other) {
  bins_.resize(std::max(bins_.size(), other.bins_.size()));
  for (std::size_t i = 0; i < other.bins_.size(); ++i) bins_[i] += other.bins_[i];
  count_ += other.count_;
  total_ns_ = sum_of(total_ns_, other.total_ns_);
  largest_ns_ = std::max(largest_ns_, other.largest_ns_);
}

std::int64_t Distribution::quantile_ns(double quantile) const {
  if (count_ == 0) return 0;
  const auto wanted =
      static_cast<std::uint64_t>(std::max(1.0, std::ceil(quantile * static_cast<double>(count_))));
  std::uint64_t seen = 0;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    seen += bins_[bin];
    if (seen >= wanted) return std::min(edge_of(bin), largest_ns_);
  }
  return largest_ns_;
}

std::vector<std::pair<std::int64_t, std::uint64_t>> Distribution::bins() const {
  std::vector<std::pair<std::int64_t, std::uint64_t>> result;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    if (bins_[bin] > 0) result.emplace_back(edge_of(bin), bins_[bin]);
  }
  return result;
}

Distribution Distribution::from(std::int64_t total_ns, std::int64_t largest_ns,
                                const std::vector<std::pair<std::int64_t, std::uint64_t>>& bins) {
  Distribution result;
  result.total_ns_ = total_ns;
  result.largest_ns_ = largest_ns;
  for (const auto& [edge_ns, count] : bins) {
    const std::size_t bin = bin_of(static_cast<std::uint64_t>(std::max<std::int64_t>(edge_ns, 0)));
    if (bin >= result.bins_.size()) result.bins_.resize(bin + 1);
    result.bins_[bin] += static_cast<std::uint32_t>(count);
    result.count_ += count;
  }
  return result;
}

std::string_view to_string(Phase phase) noexcept {
  constexpr std::array<std::string_view, kPhaseCount> kNames = {
      "negotiate", "queue", "pack", "communicate", "unpack", "complete"};
  return enum_name(kNames, phase, "unknown");
}

void MessageFigures::merge(const MessageFigures& other) {
  count += other.count;
  tensors += other.tensors;
  bytes += other.bytes;
  uncompressed_bytes += other.uncompressed_bytes;
  for (std::size_t i = 0; i < kPhaseCount; ++i) phases[i].merge(other.phases[i]);
}

namespace {

void merge_counters(Stats& stats, const Stats& other) {
  for (const StatsGroup& part : other) {
    const auto known = std::ranges::find(stats, part.part, &StatsGroup::part);
    if (known == stats.end()) {
      stats.push_back(part);
      continue;
    }
    for (const auto& [name, value] : part.counters) {
      const auto counter =
          std::ranges::find(known->counters, name, [](const auto& pair) { return pair.first; });
      if (counter == known->counters.end()) {
        known->counters.emplace_back(name, value);
      } else {
        const bool is_maximum = name.starts_with("largest_");
        counter->second = is_maximum ? std::max(counter->second, value) : counter->second + value;
      }
    }
  }
}

}  // namespace

void Series::add(double seconds, double value) {
  // The newest point stays at the end until the next one comes, unless it is one of every stride.
  if (count > 0 && (count - 1) % stride != 0) points.pop_back();
  points.emplace_back(seconds, value);
  ++count;
  if (points.size() <= kMostPoints) return;
  for (std::size_t i = 0; 2 * i < points.size(); ++i) points[i] = points[2 * i];
  points.resize((points.size() + 1) / 2);
  stride *= 2;
}

void Figures::merge(const Figures& other) {
  seconds = std::max(seconds, other.seconds);
  steps = std::max(steps, other.steps);
  samples += other.samples;
  timed_samples += other.timed_samples;
  step_time.merge(other.step_time);
  exposed.merge(other.exposed);
  backward.merge(other.backward);
  last_buckets += other.last_buckets;
  last_bucket_bytes += other.last_bucket_bytes;
  last_bucket_lead_ns += other.last_bucket_lead_ns;
  operations += other.operations;
  gather.merge(other.gather);
  wait.merge(other.wait);
  for (const auto& [exponent, figures] : other.messages) messages[exponent].merge(figures);
  for (const auto& [rank, last] : other.last_ranks) {
    last_ranks[rank].count += last.count;
    last_ranks[rank].lost_ns += last.lost_ns;
  }
  for (const auto& [name, span] : other.spans) {
    spans[name].bytes += span.bytes;
    spans[name].time.merge(span.time);
  }
  for (const auto& [reason, count] : other.thaws) thaws[reason] += count;
  for (const auto& [name, recorded] : other.series) series.try_emplace(name, recorded);
  peak_bytes = std::max(peak_bytes, other.peak_bytes);
  events += other.events;
  lost_events += other.lost_events;
  merge_counters(counters, other.counters);
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace example {

/// Random numbers that are a pure function of (seed, epoch, index): whichever rank or worker draws
/// for sample `index` of an epoch, and in whatever order, it draws the same. The generator is
/// SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
class CounterRandom {
 public:
  CounterRandom(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index)
      : state_(mix(mix(mix(seed) + epoch) + index)) {}

  std::uint64_t next() { return mix(state_ += kGamma); }

  /// Uniform in (0, 1).
  double uniform() { return (static_cast<double>(next() >> 12) + 0.5) * 0x1p-52; }

  /// Uniform in [0, bound), bound at least 1. The bias is below bound / 2^32.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(((next() >> 32) * static_cast<std::uint64_t>(bound)) >> 32);
  }

 private:
  static constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15;

  static std::uint64_t mix(std::uint64_t value) {
    value += kGamma;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
  }

  std::uint64_t state_;
};

}  // namespace example

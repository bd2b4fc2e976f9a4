// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace kmeans {

/// What the program spends its time on; those from Assign on once an iteration.
enum class Phase : std::size_t { Read, Start, Assign, Sums, Allreduce, Update };

inline constexpr std::array<const char*, 6> kPhaseNames = {"read",       "start",     "assign",
                                                           "local sums", "allreduce", "update"};

/// The seconds of a phase, over the ranks.
struct PhaseSummary {
  double mean_s = 0;     ///< of the ranks' sums over all iterations
  double slowest_s = 0;  ///< the largest such sum
  double median_s = 0;   ///< of an iteration, mean over the ranks
};

/// This rank's times by phase.
class PhaseTimes {
 public:
  /// Runs `work` as part of the phase and returns its result.
  template <typename Work>
  auto measure(Phase phase, Work work) {
    const Stopwatch stopwatch(seconds_[static_cast<std::size_t>(phase)]);
    return work();
  }

  /// By phase. Collective.
  std::vector<PhaseSummary> summarize() const;

 private:
  class Stopwatch {
   public:
    explicit Stopwatch(std::vector<double>& seconds) : seconds_(seconds) {}
    ~Stopwatch() {
      seconds_.push_back(std::chrono::duration<double>(Clock::now() - begun_).count());
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

   private:
    using Clock = std::chrono::steady_clock;
    std::vector<double>& seconds_;
    Clock::time_point begun_ = Clock::now();
  };

  std::array<std::vector<double>, kPhaseNames.size()> seconds_;
};

}  // namespace kmeans

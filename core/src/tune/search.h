// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <vector>

namespace ronde {

/// Finds the fastest point of a grid from noisy times; has no clock, and measures nothing itself:
///
///     TuneSearch search({9, 8}, {start});
///     while (!search.finished()) search.record(time_at(search.next()));
///     use(search.best());
///
/// Note [The search]
/// 1. A bandit over a coarse sample of the grid: successive halving (Jamieson and Talwalkar,
///    "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016). All
///    arms are measured once, the better half again, until one is left. The arms are the starts and
///    a low-discrepancy sequence (Kronecker's, with the roots that M. Roberts named R_d in 2018).
/// 2. A local search, one step in one dimension at a time: the exploratory moves of Hooke and
///    Jeeves, "Direct search", JACM 8 (1961). A point that looks better is measured twice before
///    the search moves there.
/// 3. The winner against the best start, in turns (A B B A ...), by new times alone. The start
///    stays unless the winner wins each pair: of points that are equal, one does so with five pairs
///    once in 32 times, whatever the noise (a sign test).
/// Points are compared by the median of all their times.
class TuneSearch {
 public:
  using Point = std::vector<std::size_t>;  ///< an index into the values of each dimension
  /// The phase of the search: Note [The search].
  enum class Phase { Arms, Neighbours, Confirm, Done };

  /// `sizes`: values of each dimension, in an order in which neighbours are alike. `starts`: at
  /// least one point; the search ends at the first or the best of them unless another one wins.
  TuneSearch(std::vector<std::size_t> sizes, std::vector<Point> starts);

  /// Returns whether nothing is left to measure.
  bool finished() const noexcept { return phase_ == Phase::Done; }
  /// The phase that next() belongs to.
  Phase phase() const noexcept { return phase_; }

  /// Returns the point to measure next. Must not be called once finished.
  const Point& next() const { return queue_.front(); }
  /// Records the time measured at next().
  void record(double time);

  /// Returns the fastest point so far; final once finished.
  const Point& best() const noexcept { return best_; }
  /// The start that best() has to beat.
  const Point& reference() const noexcept { return reference_; }
  /// Returns the median of all times at a point; infinite if it was not measured.
  double time_of(const Point& point) const;
  /// Returns the part of the time that best() saved over reference() in the comparison at the end.
  double gain() const noexcept { return gain_; }
  /// Returns the number of calls of record() so far.
  std::size_t measurements() const noexcept { return measurements_; }

  /// Returns the median; infinite if there are no values.
  static double median(std::vector<double> values);

 private:
  void add_arms(const std::vector<Point>& starts);
  void end_round();
  void explore();
  bool step(std::size_t move, Point& point) const;
  bool is_better(const Point& point) const;
  void begin_confirm();
  void confirm();

  static constexpr std::size_t kArms = 8;         ///< beside the starts
  static constexpr std::size_t kNeighbours = 10;  ///< measurements in the local search
  static constexpr std::size_t kPairs = 5;        ///< comparisons at the end, or until one is lost
  static constexpr double kMargin = 0.01;  ///< part of a time by which a point must be faster

  const std::vector<std::size_t> sizes_;
  const std::vector<Point> starts_;
  Phase phase_ = Phase::Arms;
  std::deque<Point> queue_;  ///< to measure
  std::vector<Point> arms_;  ///< that are left
  std::map<Point, std::vector<double>> times_;
  std::size_t measurements_ = 0;
  Point best_, reference_;
  std::size_t move_ = 0;                        ///< the local search's next move
  std::size_t failed_ = 0;                      ///< moves in a row without gain
  std::size_t explored_ = 0;                    ///< its measurements
  std::vector<double> of_best_, of_reference_;  ///< times in the comparison at the end
  double gain_ = 0;
};

}  // namespace ronde

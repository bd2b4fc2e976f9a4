// SPDX-License-Identifier: Apache-2.0
// Each record() ends one measurement; when the queue is empty, the phase chooses the next ones:
// Note [The search].
#include "core/src/tune/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ronde {
namespace {

/// The root of x^(d+1) = x + 1, of which R_d takes powers.
double root_of(std::size_t dimensions) {
  double root = 2;
  for (int i = 0; i < 50; ++i)
    root = std::pow(1 + root, 1.0 / (static_cast<double>(dimensions) + 1));
  return root;
}

}  // namespace

double TuneSearch::median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::infinity();
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

TuneSearch::TuneSearch(std::vector<std::size_t> sizes, std::vector<Point> starts)
    : sizes_(std::move(sizes)),
      starts_(std::move(starts)),
      best_(starts_.front()),
      reference_(starts_.front()) {
  add_arms(starts_);
  if (arms_.size() == 1) phase_ = Phase::Done;
  queue_.assign(arms_.begin(), arms_.end());
}

void TuneSearch::add_arms(const std::vector<Point>& starts) {
  const auto add = [this](const Point& point) {
    if (std::ranges::find(arms_, point) == arms_.end()) arms_.push_back(point);
  };
  std::ranges::for_each(starts, add);
  const double root = root_of(sizes_.size());
  for (std::size_t i = 1; i <= kArms; ++i) {
    Point point;
    double power = 1;
    for (const std::size_t size : sizes_) {
      power /= root;
      const double place = 0.5 + static_cast<double>(i) * power;
      const double part = place - std::floor(place);
      point.push_back(static_cast<std::size_t>(part * static_cast<double>(size)));
    }
    add(point);
  }
}

double TuneSearch::time_of(const Point& point) const {
  const auto found = times_.find(point);
  return median(found != times_.end() ? found->second : std::vector<double>());
}

void TuneSearch::record(double time) {
  const Point point = std::move(queue_.front());
  queue_.pop_front();
  ++measurements_;
  if (phase_ == Phase::Confirm) {
    (point == best_ ? of_best_ : of_reference_).push_back(time);
    const bool is_pair = of_best_.size() == of_reference_.size();
    if (is_pair && (queue_.empty() || of_best_.back() >= of_reference_.back())) confirm();
    return;
  }
  times_[point].push_back(time);
  if (phase_ == Phase::Neighbours) {
    ++explored_;
    explore();
  } else if (queue_.empty()) {
    end_round();
  }
}

/// Drops the worse half of the arms.
void TuneSearch::end_round() {
  std::ranges::stable_sort(arms_, {}, [this](const Point& point) { return time_of(point); });
  best_ = arms_.front();
  arms_.resize((arms_.size() + 1) / 2);
  if (arms_.size() > 1) {
    queue_.assign(arms_.begin(), arms_.end());
    return;
  }
  phase_ = Phase::Neighbours;
  explore();
}

/// Moves until a point has to be measured.
void TuneSearch::explore() {
  const std::size_t moves = 2 * sizes_.size();
  while (failed_ < moves && explored_ < kNeighbours) {
    Point point = best_;
    if (step(move_, point)) {
      const std::size_t times = times_[point].size();
      if (times == 0 || (times == 1 && is_better(point))) {
        queue_.push_back(std::move(point));
        return;
      }
      if (is_better(point)) {
        best_ = std::move(point);
        failed_ = 0;
        continue;  // the same way again
      }
    }
    move_ = (move_ + 1) % moves;
    ++failed_;
  }
  begin_confirm();
}

/// Returns false if there is no such point.
bool TuneSearch::step(std::size_t move, Point& point) const {
  const std::size_t dimension = move / 2;
  std::size_t& index = point[dimension];
  if (move % 2 == 0) return ++index < sizes_[dimension];
  return index-- > 0;
}

bool TuneSearch::is_better(const Point& point) const {
  return time_of(point) < (1 - kMargin) * time_of(best_);
}

void TuneSearch::begin_confirm() {
  const auto time = [this](const Point& point) { return time_of(point); };
  reference_ = *std::ranges::min_element(starts_, {}, time);
  if (reference_ == best_) {
    phase_ = Phase::Done;
    return;
  }
  phase_ = Phase::Confirm;
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    queue_.push_back(pair % 2 == 0 ? reference_ : best_);
    queue_.push_back(pair % 2 == 0 ? best_ : reference_);
  }
}

void TuneSearch::confirm() {
  phase_ = Phase::Done;
  const bool wins = of_best_.back() < of_reference_.back();  // as in all pairs before
  const double before = median(of_reference_);
  const double after = median(of_best_);
  if (wins && after < (1 - kMargin) * before) {
    gain_ = 1 - after / before;
  } else {
    best_ = reference_;
  }
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#include "core/src/tune/search.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

using namespace ronde;

namespace {

using Point = TuneSearch::Point;
using Landscape = std::function<double(const Point&)>;

/// Times around the landscape's, a few of them several times as long: as on a busy machine.
class Noise {
 public:
  Noise(unsigned seed, double spread) : engine_(seed), spread_(spread) {}

  /// The faster of two pairs of steps, as a Tuner measures.
  double measured(double time) {
    const double first = step(time) + step(time);
    return std::min(first, step(time) + step(time)) / 2;
  }

 private:
  double step(double time) {
    const double slow = uniform_(engine_) < 0.05 ? 3 : 1;
    return time * slow * std::exp(spread_ * normal_(engine_));
  }

  std::mt19937 engine_;
  double spread_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
};

double distance(std::size_t index, double from) {
  return std::abs(static_cast<double>(index) - from);
}

/// Of fusion bytes and cycle times: both too little and too much cost, and they are not
/// independent.
double valley(const Point& point) {
  return 1 + 0.08 * distance(point[0], 5) + 0.05 * distance(point[1], 6) +
         0.02 * distance(point[0] + point[1], 11);
}

double best_of(const Landscape& landscape, const std::vector<std::size_t>& sizes) {
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < sizes[0]; ++i) {
    for (std::size_t j = 0; j < sizes[1]; ++j) best = std::min(best, landscape({i, j}));
  }
  return best;
}

TuneSearch searched(TuneSearch search, const Landscape& landscape, Noise& noise) {
  while (!search.finished()) search.record(noise.measured(landscape(search.next())));
  CHECK(search.measurements() * 5 <= 200);  // a step to settle, and four measured
  return search;
}

const std::vector<std::size_t> kSizes = {9, 8};

}  // namespace

TEST_CASE(
    "a search comes near the best point of a noisy valley, wherever it starts, or stays there") {
  int near = 0;
  constexpr int kSeeds = 200;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    Noise noise(seed, 0.02);
    const Point start = {seed % 9, seed % 8};
    const TuneSearch search = searched({kSizes, {start}}, valley, noise);
    CHECK(valley(search.best()) <= valley(start));
    if (valley(search.best()) <= 1.05 * best_of(valley, kSizes)) ++near;
  }
  CHECK(near >= kSeeds * 9 / 10);
  for (unsigned seed = 0; seed < 100; ++seed) {
    Noise noise(seed, 0.03);
    const TuneSearch search = searched({kSizes, {{5, 6}}}, valley, noise);
    CHECK(valley(search.best()) <= 1.02 * valley({5, 6}));
  }
}

TEST_CASE("noise alone seldom moves a search away from its start") {
  const double spread = GENERATE(0.005, 0.03, 0.1);
  CAPTURE(spread);
  int moved = 0;
  constexpr int kSeeds = 2000;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    Noise noise(seed, spread);
    const auto flat = [](const Point&) { return 1.0; };
    if (searched({kSizes, {{5, 6}}}, flat, noise).best() != Point{5, 6}) ++moved;
  }
  CHECK(moved <= kSeeds * 5 / 100);
}

TEST_CASE("a search without noise finds the best point exactly, and how much it gains") {
  const auto cliff = [](const Point& point) { return point == Point{0, 0} ? 4.0 : 2.0; };
  TuneSearch search(kSizes, {{0, 0}});
  while (!search.finished()) search.record(cliff(search.next()));
  CHECK(search.best() != Point{0, 0});
  CHECK(search.gain() == Approx(0.5));
  CHECK(search.reference() == Point{0, 0});
}

TEST_CASE("what looked better by luck loses the comparison at the end") {
  TuneSearch search(kSizes, {{4, 4}});
  while (search.phase() != TuneSearch::Phase::Confirm) {
    search.record(search.next() == Point{4, 4} ? 2.0 : 1.0);
  }
  const Point lucky = search.best();
  CHECK(lucky != Point{4, 4});
  while (!search.finished()) search.record(1.0);
  CHECK(search.best() == Point{4, 4});
  CHECK(search.gain() == 0);
}

TEST_CASE("of several starts the faster one has to be beaten") {
  TuneSearch search(kSizes, {{0, 0}, {3, 3}});
  while (!search.finished()) {
    const Point& point = search.next();
    search.record(point == Point{3, 3} ? 1.0 : point == Point{0, 0} ? 2.0 : 3.0);
  }
  CHECK(search.best() == Point{3, 3});
}

TEST_CASE("a grid of one point needs no search, and a median of nothing is infinite") {
  CHECK(TuneSearch({1, 1}, {{0, 0}}).finished());
  CHECK(TuneSearch::median({3, 1, 2}) == 2);
  CHECK(TuneSearch::median({4, 1, 2, 3}) == 2.5);
  CHECK(std::isinf(TuneSearch::median({})));
}

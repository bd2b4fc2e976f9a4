// SPDX-License-Identifier: Apache-2.0
#include "pairs.h"

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <stdexcept>

namespace ronde_test::pairs_test {
namespace {

/// Factor, choice, factor, choice.
using Pair = std::array<std::size_t, 4>;

std::vector<Pair> pairs_with(const std::vector<std::size_t>& choices, std::size_t factor) {
  std::vector<Pair> pairs;
  for (std::size_t other = 0; other < choices.size(); ++other) {
    if (other < factor) pairs.push_back({other, choices[other], factor, choices[factor]});
    if (other > factor) pairs.push_back({factor, choices[factor], other, choices[other]});
  }
  return pairs;
}

class Cover {
 public:
  Cover(const std::vector<Factor>& factors, const std::function<bool(const Row&)>& forbidden)
      : factors_(factors), forbidden_(forbidden) {
    for (std::size_t a = 0; a < factors.size(); ++a) {
      for (std::size_t b = a + 1; b < factors.size(); ++b) add_pairs(a, b);
    }
  }

  bool done() const { return open_.empty(); }

  /// The best of several attempts, each with the factors in another order.
  std::vector<std::size_t> next() {
    std::vector<std::size_t> best;
    std::size_t most = 0;
    for (int attempt = 0; attempt < 40 || most == 0; ++attempt) {
      const std::vector<std::size_t> choices = attempt_row();
      if (choices.empty()) continue;
      const std::size_t gain = covered_by(choices);
      if (gain <= most) continue;
      most = gain;
      best = choices;
    }
    for (std::size_t factor = 0; factor < best.size(); ++factor) {
      for (const Pair& pair : pairs_with(best, factor)) open_.erase(pair);
    }
    return best;
  }

 private:
  void add_pairs(std::size_t a, std::size_t b) {
    for (std::size_t x = 0; x < factors_[a].levels.size(); ++x) {
      for (std::size_t y = 0; y < factors_[b].levels.size(); ++y) {
        std::vector<std::size_t> choices(factors_.size(), 0);
        choices[a] = x;
        choices[b] = y;
        if (!forbidden_(Row(factors_, choices))) open_.insert({a, x, b, y});
      }
    }
  }

  /// Begins with a pair that is open, and gives the other factors one after the other what covers
  /// the most. Empty: that led to a row which makes no sense.
  std::vector<std::size_t> attempt_row() {
    auto start = open_.begin();
    std::advance(start, static_cast<std::ptrdiff_t>(random_() % open_.size()));
    std::vector<std::size_t> choices(factors_.size(), 0);
    std::vector<bool> fixed(factors_.size(), false);
    const auto fix = [&](std::size_t factor, std::size_t level) {
      choices[factor] = level;
      fixed[factor] = true;
    };
    fix((*start)[0], (*start)[1]);
    fix((*start)[2], (*start)[3]);
    std::vector<std::size_t> order(factors_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t factor : order) {
      if (!fixed[factor]) fix(factor, best_level(factor, choices, fixed));
    }
    return forbidden_(Row(factors_, choices)) ? std::vector<std::size_t>() : choices;
  }

  std::size_t best_level(std::size_t factor, std::vector<std::size_t> choices,
                         const std::vector<bool>& fixed) {
    std::size_t best = 0;
    std::ptrdiff_t most = -1;
    for (std::size_t level = 0; level < factors_[factor].levels.size(); ++level) {
      choices[factor] = level;
      if (forbidden_(Row(factors_, choices))) continue;
      std::ptrdiff_t gain = 0;
      for (const Pair& pair : pairs_with(choices, factor)) {
        const std::size_t other = pair[0] == factor ? pair[2] : pair[0];
        if (fixed[other] && open_.count(pair) > 0) ++gain;
      }
      if (gain < most || (gain == most && random_() % 2 == 0)) continue;
      most = gain;
      best = level;
    }
    return best;
  }

  std::size_t covered_by(const std::vector<std::size_t>& choices) const {
    std::size_t count = 0;
    for (std::size_t factor = 0; factor < choices.size(); ++factor) {
      for (const Pair& pair : pairs_with(choices, factor)) count += open_.count(pair);
    }
    return count;
  }

  const std::vector<Factor>& factors_;
  const std::function<bool(const Row&)>& forbidden_;
  std::set<Pair> open_;
  std::mt19937 random_{7};
};

}  // namespace

const std::string& Row::operator[](const std::string& factor) const {
  for (std::size_t i = 0; i < factors_->size(); ++i) {
    if ((*factors_)[i].name == factor) return (*factors_)[i].levels.at(choices_.at(i));
  }
  throw std::logic_error("there is no factor " + factor);
}

bool Row::is(const std::string& factor, const std::string& level) const {
  return (*this)[factor] == level;
}

std::string Row::text() const {
  std::string text;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i] == 0) continue;
    text +=
        (text.empty() ? "" : " ") + (*factors_)[i].name + "-" + (*factors_)[i].levels[choices_[i]];
  }
  return text.empty() ? "as by default" : text;
}

std::vector<Row> pairwise_rows(const std::vector<Factor>& factors,
                               const std::function<bool(const Row&)>& forbidden) {
  Cover cover(factors, forbidden);
  std::vector<Row> rows;
  while (!cover.done()) rows.emplace_back(factors, cover.next());
  return rows;
}

}  // namespace ronde_test::pairs_test

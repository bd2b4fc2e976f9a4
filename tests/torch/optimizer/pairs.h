// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ronde_test::pairs_test {

/// One thing that can be chosen, and the choices; the first is what users get by default.
struct Factor {
  std::string name;
  std::vector<std::string> levels;
};

/// A choice for each factor.
class Row {
 public:
  Row(const std::vector<Factor>& factors, std::vector<std::size_t> choices)
      : factors_(&factors), choices_(std::move(choices)) {}

  /// Of the factor of that name; throws for an unknown one.
  const std::string& operator[](const std::string& factor) const;
  bool is(const std::string& factor, const std::string& level) const;

  const std::vector<std::size_t>& choices() const noexcept { return choices_; }
  /// The choices that are not the default ones.
  std::string text() const;

 private:
  const std::vector<Factor>* factors_;
  std::vector<std::size_t> choices_;
};

/// Rows in which each pair of choices of two factors occurs, but those that `forbidden` says make
/// no sense together; each pair may only forbid by its own two factors. Greedy: every row takes the
/// choices that cover the most pairs not covered yet (the idea of AETG: Cohen, Dalal, Fredman and
/// Patton, 1997), ties broken by a generator with a fixed seed. `factors` must outlive the rows.
std::vector<Row> pairwise_rows(const std::vector<Factor>& factors,
                               const std::function<bool(const Row&)>& forbidden);

}  // namespace ronde_test::pairs_test

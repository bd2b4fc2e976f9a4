// SPDX-License-Identifier: Apache-2.0
#include "points.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "common/program.h"
#include "exchange.h"

namespace kmeans {
namespace {

constexpr int kSumBits = 62;
constexpr int kDoubleBits = 52;

/// The least b with value <= 2^b.
int ceil_log2(std::int64_t value) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value) - 1));
}

/// Returns the largest absolute value of all ranks, and checks that they have read the same file.
double agree_on_table(const example::Table& table) {
  double largest = 0;
  for (const double value : table.values) largest = std::max(largest, std::abs(value));
  const auto rows = static_cast<double>(table.rows);
  const auto columns = static_cast<double>(table.columns);
  const auto checksum = static_cast<double>(table.checksum);
  // The largest of a number and of its negative are opposite only if all ranks have the same.
  std::array<double, 7> facts = {largest, rows, -rows, columns, -columns, checksum, -checksum};
  allreduce_max(facts, "table");
  if (facts[1] != -facts[2] || facts[3] != -facts[4] || facts[5] != -facts[6]) {
    throw example::InputError(
        "the ranks have read different files: every rank needs the same file under the same name");
  }
  return facts[0];
}

}  // namespace

int value_bits(std::int64_t terms) {
  return std::min(kDoubleBits, kSumBits - ceil_log2(terms));
}

int fraction_bits(double largest, int bits) {
  if (largest == 0) return 0;
  // largest < 2^(ilogb + 1), and rounds to 2^bits quanta at most.
  return bits - (std::ilogb(largest) + 1);
}

SquareSum::SquareSum(std::int64_t terms, std::int64_t columns, int bits)
    // A difference has one bit more than a value.
    : shift_(2 * (bits + 1) + ceil_log2(columns) + ceil_log2(terms) - kSumBits) {}

std::int64_t SquareSum::term(double square) const {
  return std::llrint(std::ldexp(square, -shift_));
}

double SquareSum::value(std::int64_t sum) const {
  return std::ldexp(static_cast<double>(sum), shift_);
}

Points make_points(example::Table table, const example::Part& part) {
  const double largest = agree_on_table(table);
  Points points;
  points.part = part;
  points.rows = table.rows;
  points.columns = table.columns;
  points.value_bits = value_bits(table.rows);
  points.fraction_bits = fraction_bits(largest, points.value_bits);
  points.values = std::move(table.values);
  for (double& value : points.values) {
    value = std::nearbyint(std::ldexp(value, points.fraction_bits));
  }
  return points;
}

std::vector<double> fetch_point(const Points& points, std::int64_t row) {
  const int owner = static_cast<int>(row % points.part.ranks);
  std::vector<double> values(static_cast<std::size_t>(points.columns));
  if (owner == points.part.rank) {
    const auto point = points.point(row / points.part.ranks);
    std::copy(point.begin(), point.end(), values.begin());
  }
  // A name for each root: the operation is then the same each time, and agreed on but once.
  broadcast(values, owner, "point of rank " + std::to_string(owner));
  return values;
}

double squared_distance(std::span<const double> from, std::span<const double> to) {
  double sum = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const double difference = from[i] - to[i];
    sum += difference * difference;
  }
  return sum;
}

}  // namespace kmeans

// SPDX-License-Identifier: Apache-2.0
// Kernels::products and Kernels::blend, which Adasum is made of.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ronde/kernels.h"

namespace {

using namespace ronde;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Number>
constexpr DataType kType = sizeof(Number) == 4 ? DataType::F32 : DataType::F64;

/// Beginning at an address that is aligned to nothing but a number.
template <typename Number>
std::vector<Number> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponents(-20, 20);
  std::vector<Number> all(count + 1);
  for (Number& number : all) {
    const double sign = random() % 2 == 0 ? 1 : -1;
    number = static_cast<Number>(sign * std::exp2(exponents(random)));
  }
  return all;
}

template <typename Number>
void check_products(std::size_t count) {
  const auto first = numbers<Number>(count, 1);
  const auto second = numbers<Number>(count, 2);
  const auto check_dot = [&](double got, const auto& a, const auto& b) {
    long double sum = 0;
    long double magnitude = 0;
    for (std::size_t i = 1; i <= count; ++i) {
      sum += static_cast<long double>(a[i]) * b[i];
      magnitude += std::fabs(static_cast<long double>(a[i]) * b[i]);
    }
    CHECK(std::fabs(got - sum) <= static_cast<long double>(count) * 0x1p-53L * magnitude);
  };
  const Products baseline = available_kernels().back()->products(
      first.data() + 1, second.data() + 1, count, kType<Number>);
  check_dot(baseline.mixed, first, second);
  check_dot(baseline.first, first, first);
  check_dot(baseline.second, second, second);
  for (const Kernels* const kernels : available_kernels()) {
    CAPTURE(kernels->name);
    const Products same =
        kernels->products(first.data() + 1, second.data() + 1, count, kType<Number>);
    CHECK(std::memcmp(&same, &baseline, sizeof same) == 0);
  }
}

template <typename Number>
void check_blend(std::size_t count, const Blend& factors) {
  const auto first = numbers<Number>(count, 3);
  const auto second = numbers<Number>(count, 4);
  std::vector<Number> right = first;
  for (std::size_t i = 0; i < count; ++i) {
    // Kept apart, so that no compiler fuses them.
    const volatile double a = static_cast<double>(first[i + 1]) * factors.first;
    const volatile double b = static_cast<double>(second[i + 1]) * factors.second;
    right[i + 1] = static_cast<Number>(a + b);
  }
  for (const Kernels* const kernels : available_kernels()) {
    CAPTURE(kernels->name);
    std::vector<Number> in_place = first;
    kernels->blend(in_place.data() + 1, in_place.data() + 1, second.data() + 1, count,
                   kType<Number>, factors);
    // The first number is none of the vectors'.
    CHECK(std::memcmp(in_place.data(), right.data(), right.size() * sizeof(Number)) == 0);
  }
}

template <typename Number>
void check_non_finite() {
  const std::vector<Number> zeros(11);
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    for (std::size_t place = 0; place < zeros.size(); ++place) {
      auto values = zeros;
      values[place] = static_cast<Number>(bad);
      for (const Kernels* const kernels : available_kernels()) {
        const Products products =
            kernels->products(values.data(), zeros.data(), values.size(), kType<Number>);
        CHECK(std::isnan(products.mixed));
        CHECK((std::isnan(bad) ? std::isnan(products.first) : products.first == kInfinity));
        CHECK(products.second == 0);
      }
    }
  }
}

}  // namespace

TEST_CASE("dot products of a pair are those of long double, the same bits in every set") {
  for (std::size_t count = 0; count <= 40; ++count) {
    CAPTURE(count);
    check_products<float>(count);
    check_products<double>(count);
  }
  check_products<float>(10'003);
  check_products<double>(10'003);
}

TEST_CASE("blends are those of f64 rounded once, in every set, in place") {
  for (const Blend& factors : {Blend{}, Blend{0.5, 0.5}, Blend{-1.0 / 3, 1e40}, Blend{1, 0}}) {
    for (const std::size_t count : {0U, 1U, 7U, 8U, 9U, 31U, 1003U}) {
      CAPTURE(count, factors.first);
      check_blend<float>(count, factors);
      check_blend<double>(count, factors);
    }
  }
}

TEST_CASE("dot products tell of a NaN or infinity wherever it is") {
  check_non_finite<float>();
  check_non_finite<double>();
}

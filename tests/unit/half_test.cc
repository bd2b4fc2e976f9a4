// SPDX-License-Identifier: Apache-2.0
#include "core/src/half.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace ronde;

struct Format {
  const char* name;
  int mantissa_bits;
  int lowest_exponent;  ///< of a normal number
  float (*widen)(std::uint16_t) noexcept;
  std::uint16_t (*narrow)(float) noexcept;
  std::uint16_t infinity;
};

const Format kF16{"f16", 10, -14, f16_to_f32, f32_to_f16, 0x7c00};
const Format kBF16{"bf16", 7, -126, bf16_to_f32, f32_to_bf16, 0x7f80};

/// What the 16 bits mean, by the definition of the format.
double meaning(const Format& format, std::uint16_t bits) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> format.mantissa_bits;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int scale = format.lowest_exponent - format.mantissa_bits;
  if (exponent == 0) return sign * std::ldexp(mantissa, scale);
  return sign * std::ldexp((1 << format.mantissa_bits) + mantissa, scale + exponent - 1);
}

bool is_nan(const Format& format, std::uint16_t bits) {
  return (bits & 0x7fff) > format.infinity;
}

/// Checks `narrow(value)` for a finite value: the nearest neighbour, the even one of two.
void check_nearest(const Format& format, float value) {
  const std::uint16_t bits = format.narrow(value);
  const double exact = value;
  REQUIRE(((bits & 0x8000) != 0) == std::signbit(value));
  const std::uint16_t magnitude = bits & 0x7fff;
  REQUIRE(magnitude <= format.infinity);
  // Infinity counts as the number that would follow the largest one.
  const double distance = std::abs(meaning(format, magnitude) - std::abs(exact));
  for (const int step : {-1, 1}) {
    const int neighbour = magnitude + step;
    if (neighbour < 0 || neighbour > format.infinity) continue;
    const double other =
        std::abs(meaning(format, static_cast<std::uint16_t>(neighbour)) - std::abs(exact));
    const bool nearest = distance < other || (distance == other && magnitude % 2 == 0);
    if (!nearest) {
      CAPTURE(format.name, value, bits);
      REQUIRE(nearest);
    }
  }
}

void check_all_widen(const Format& format) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float wide = format.widen(bits);
    const std::uint16_t back = format.narrow(wide);
    bool right = back == bits;
    if (is_nan(format, bits)) {
      const auto quiet = static_cast<std::uint16_t>(bits | (1 << (format.mantissa_bits - 1)));
      right = std::isnan(wide) && back == quiet;
    } else if ((bits & 0x7fff) == format.infinity) {
      right = right && std::isinf(wide) && std::signbit(wide) == (bits >= 0x8000);
    } else {
      right = right && static_cast<double>(wide) == meaning(format, bits);
    }
    if (!right) {
      CAPTURE(format.name, i, wide, back);
      REQUIRE(right);
    }
  }
}

/// Every value of the format, its midpoint to the next one, and the floats next to both.
void check_around_all_values(const Format& format) {
  for (std::uint16_t bits = 0; bits < format.infinity; ++bits) {
    const double low = meaning(format, bits);
    const double high = meaning(format, static_cast<std::uint16_t>(bits + 1));
    for (const double point : {low, (low + high) / 2}) {
      const auto middle = static_cast<float>(point);
      for (const float value : {std::nextafter(middle, 0.0F), middle,
                                std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
        if (std::isinf(value)) continue;
        check_nearest(format, value);
        check_nearest(format, -value);
      }
    }
  }
}

void check_random(const Format& format) {
  std::mt19937 random(7);
  for (int i = 0; i < 200'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(value)) {
      check_nearest(format, value);
    } else if (std::isnan(value)) {
      const std::uint16_t bits = format.narrow(value);
      REQUIRE(is_nan(format, bits));
      REQUIRE((bits & (1 << (format.mantissa_bits - 1))) != 0);
      REQUIRE((bits >= 0x8000) == std::signbit(value));
    }
  }
}

}  // namespace

TEST_CASE("all 65536 halves widen exactly and come back") {
  for (const Format& format : {kF16, kBF16}) check_all_widen(format);
}

TEST_CASE("narrowing is to nearest even around every half and midpoint") {
  for (const Format& format : {kF16, kBF16}) check_around_all_values(format);
}

TEST_CASE("narrowing of random bits is to nearest even, NaN stays a quiet NaN") {
  for (const Format& format : {kF16, kBF16}) check_random(format);
}

TEST_CASE("half types overflow to infinity where rounding says so") {
  CHECK(f32_to_f16(65519.996F) == 0x7bff);
  CHECK(f32_to_f16(65520.0F) == 0x7c00);
  CHECK(f32_to_f16(-65520.0F) == 0xfc00);
  CHECK(f32_to_f16(std::numeric_limits<float>::infinity()) == 0x7c00);
  CHECK(f32_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(f32_to_bf16(-std::numeric_limits<float>::infinity()) == 0xff80);
}

TEST_CASE("the smallest halves: half of the smallest f16 is zero, a little more is not") {
  CHECK(f32_to_f16(0x1p-24F) == 1);
  CHECK(f32_to_f16(0x1p-25F) == 0);
  CHECK(f32_to_f16(std::nextafter(0x1p-25F, 1.0F)) == 1);
  CHECK(f32_to_f16(-0x1p-26F) == 0x8000);
  CHECK(f32_to_f16(std::numeric_limits<float>::denorm_min()) == 0);
}

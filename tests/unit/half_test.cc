// SPDX-License-Identifier: Apache-2.0
#include "core/src/half.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <random>

#include "tests/support/half_rounding.h"
#include "tests/unit/halves.h"

namespace {

using namespace ronde;
using namespace ronde::test;

float widened(DataType half, std::uint16_t bits) {
  return half == DataType::F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

std::uint16_t narrowed(DataType half, float value) {
  return half == DataType::F16 ? f32_to_f16(value) : f32_to_bf16(value);
}

std::uint16_t quiet_bit(DataType half) {
  return half == DataType::F16 ? 0x0200 : 0x0040;
}

void check_narrowed(DataType half, float value) {
  const std::uint16_t bits = narrowed(half, value);
  const double got = half_value(half, bits);
  const bool right = std::isnan(value) ? std::isnan(got) && (bits & quiet_bit(half)) != 0
                                       : got == rounded_to(half, value);
  if (right && (bits >= 0x8000) == std::signbit(value)) return;
  CAPTURE(to_string(half), value, bits);
  FAIL("not the nearest half, or not the even one of two");
}

}  // namespace

TEST_CASE("all 65536 halves widen exactly and come back, NaN as a quiet NaN") {
  for (const DataType half : kHalves) {
    for (std::uint32_t i = 0; i <= 0xffff; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const auto wide = static_cast<double>(widened(half, bits));
      const double meant = half_value(half, bits);
      const bool is_nan = std::isnan(meant);
      const bool same = wide == meant && std::signbit(wide) == std::signbit(meant);
      const int back = is_nan ? bits | quiet_bit(half) : bits;
      if ((is_nan ? std::isnan(wide) : same) && narrowed(half, widened(half, bits)) == back) {
        continue;
      }
      CAPTURE(to_string(half), bits, wide);
      FAIL("another number, or not the same on the way back");
    }
  }
}

TEST_CASE("narrowing is to nearest even around every half and of random bits, NaN stays quiet") {
  std::mt19937 random(7);
  for (const DataType half : kHalves) {
    for (const double number : doubles_around_halves(half)) {
      check_narrowed(half, static_cast<float>(number));
    }
    for (int i = 0; i < 200'000; ++i) {
      check_narrowed(half, std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "core/src/kernels/instruction_set.h"
#include "core/src/kernels/vector.h"

// Adasum's products and sums of whole vectors (core/src/run/adasum.h). For the files of one
// instruction set only: see Note [One instruction set a file].

namespace ronde::kernels {
namespace {

/// Elements per step: the same in every instruction set, as it determines the order of additions.
constexpr std::size_t kAtOnce = 8;

using EightDoubles = Vector<double, kAtOnce * sizeof(double)>;

/// Loads `count` elements, at most eight; the other lanes are zero.
template <typename Number>
RONDE_KERNEL void load_eight(EightDoubles& to, const Number* from, std::size_t count) {
  Vector<Number, kAtOnce * sizeof(Number)> raw{};
  __builtin_memcpy(&raw, from, count * sizeof(Number));
  to = __builtin_convertvector(raw, EightDoubles);
}

template <typename Number>
Products products_of(const Number* first, const Number* second, std::size_t count) {
  EightDoubles mixed{};
  EightDoubles firsts{};
  EightDoubles seconds{};
  EightDoubles a;
  EightDoubles b;
  const auto add = [&](std::size_t at, std::size_t some) __attribute__((always_inline)) {
    load_eight(a, first + at, some);
    load_eight(b, second + at, some);
    mixed += a * b;
    firsts += a * a;
    seconds += b * b;
  };
  std::size_t at = 0;
  for (; count - at >= kAtOnce; at += kAtOnce) add(at, kAtOnce);
  if (at < count) add(at, count - at);
  Products sums{};
  for (std::size_t lane = 0; lane < kAtOnce; ++lane) {
    sums.mixed += mixed[lane];
    sums.first += firsts[lane];
    sums.second += seconds[lane];
  }
  return sums;
}

Products products(const void* first, const void* second, std::size_t count, DataType dtype) {
  return dtype == DataType::F32 ? products_of(static_cast<const float*>(first),
                                              static_cast<const float*>(second), count)
                                : products_of(static_cast<const double*>(first),
                                              static_cast<const double*>(second), count);
}

template <typename Number>
void blend_of(Number* output, const Number* first, const Number* second, std::size_t count,
              const Blend& factors) {
  const auto some = [&](std::size_t at, std::size_t lanes) __attribute__((always_inline)) {
    EightDoubles a;
    EightDoubles b;
    load_eight(a, first + at, lanes);
    load_eight(b, second + at, lanes);
    const EightDoubles sum = a * factors.first + b * factors.second;
    const auto rounded = __builtin_convertvector(sum, Vector<Number, kAtOnce * sizeof(Number)>);
    __builtin_memcpy(output + at, &rounded, lanes * sizeof(Number));
  };
  std::size_t at = 0;
  for (; count - at >= kAtOnce; at += kAtOnce) some(at, kAtOnce);
  if (at < count) some(at, count - at);
}

void blend(void* output, const void* first, const void* second, std::size_t count, DataType dtype,
           const Blend& factors) {
  dtype == DataType::F32 ? blend_of(static_cast<float*>(output), static_cast<const float*>(first),
                                    static_cast<const float*>(second), count, factors)
                         : blend_of(static_cast<double*>(output), static_cast<const double*>(first),
                                    static_cast<const double*>(second), count, factors);
}

}  // namespace
}  // namespace ronde::kernels

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
void products_of(double* sums, const Number* first, const Number* second, std::size_t count) {
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
  for (std::size_t lane = 0; lane < kAtOnce; ++lane) {
    sums[0] += mixed[lane];
    sums[1] += firsts[lane];
    sums[2] += seconds[lane];
  }
}

void products(double* sums, const void* first, const void* second, std::size_t count,
              DataType dtype) {
  dtype == DataType::F32 ? products_of(sums, static_cast<const float*>(first),
                                       static_cast<const float*>(second), count)
                         : products_of(sums, static_cast<const double*>(first),
                                       static_cast<const double*>(second), count);
}

template <typename Number>
void blend_of(const BlendTask& task) {
  const auto* const first = static_cast<const Number*>(task.first);
  const auto* const second = static_cast<const Number*>(task.second);
  auto* const output = static_cast<Number*>(task.output);
  const auto some = [&](std::size_t at, std::size_t count) __attribute__((always_inline)) {
    EightDoubles a;
    EightDoubles b;
    load_eight(a, first + at, count);
    load_eight(b, second + at, count);
    const EightDoubles sum = a * task.first_factor + b * task.second_factor;
    const auto rounded = __builtin_convertvector(sum, Vector<Number, kAtOnce * sizeof(Number)>);
    __builtin_memcpy(output + at, &rounded, count * sizeof(Number));
  };
  std::size_t at = 0;
  for (; task.count - at >= kAtOnce; at += kAtOnce) some(at, kAtOnce);
  if (at < task.count) some(at, task.count - at);
}

void blend(const BlendTask& task) {
  task.dtype == DataType::F32 ? blend_of<float>(task) : blend_of<double>(task);
}

}  // namespace
}  // namespace ronde::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/gpu/kernels/elements.h"

// The list of all kernels, from which kernels.cu and tests without a GPU make them.

// clang-format off

/// macro(name, From, To). ronde_move_N copies the bits of elements of N bytes.
#define RONDE_COPY_KERNELS(macro)                                   \
  macro(ronde_move_1, Plain<std::uint8_t>, Plain<std::uint8_t>)         \
  macro(ronde_move_2, Plain<std::uint16_t>, Plain<std::uint16_t>)       \
  macro(ronde_move_4, Plain<std::uint32_t>, Plain<std::uint32_t>)       \
  macro(ronde_move_8, Plain<std::uint64_t>, Plain<std::uint64_t>)       \
  macro(ronde_copy_u8_u8, Plain<std::uint8_t>, Plain<std::uint8_t>) \
  macro(ronde_copy_i8_i8, Plain<std::int8_t>, Plain<std::int8_t>)   \
  macro(ronde_copy_i16_i16, Plain<std::int16_t>, Plain<std::int16_t>) \
  macro(ronde_copy_i32_i32, Plain<std::int32_t>, Plain<std::int32_t>) \
  macro(ronde_copy_i64_i64, Plain<std::int64_t>, Plain<std::int64_t>) \
  macro(ronde_copy_f16_f16, Float16, Float16)                       \
  macro(ronde_copy_bf16_bf16, Bfloat16, Bfloat16)                   \
  macro(ronde_copy_f32_f32, Plain<float>, Plain<float>)             \
  macro(ronde_copy_f64_f64, Plain<double>, Plain<double>)           \
  macro(ronde_copy_bool_bool, Boolean, Boolean)                     \
  macro(ronde_copy_f16_f32, Float16, Plain<float>)                  \
  macro(ronde_copy_bf16_f32, Bfloat16, Plain<float>)                \
  macro(ronde_copy_f32_f16, Plain<float>, Float16)                  \
  macro(ronde_copy_f32_bf16, Plain<float>, Bfloat16)                \
  macro(ronde_copy_f16_f64, Float16, Plain<double>)                 \
  macro(ronde_copy_bf16_f64, Bfloat16, Plain<double>)               \
  macro(ronde_copy_f64_f16, Plain<double>, Float16)                 \
  macro(ronde_copy_f64_bf16, Plain<double>, Bfloat16)

/// macro(name, Element)
#define RONDE_REDUCE_KERNELS(macro)              \
  macro(ronde_reduce_u8, Plain<std::uint8_t>)    \
  macro(ronde_reduce_i8, Plain<std::int8_t>)     \
  macro(ronde_reduce_i16, Plain<std::int16_t>)   \
  macro(ronde_reduce_i32, Plain<std::int32_t>)   \
  macro(ronde_reduce_i64, Plain<std::int64_t>)   \
  macro(ronde_reduce_f16, Float16)               \
  macro(ronde_reduce_bf16, Bfloat16)             \
  macro(ronde_reduce_f32, Plain<float>)          \
  macro(ronde_reduce_f64, Plain<double>)         \
  macro(ronde_reduce_bool, Boolean)

// clang-format on

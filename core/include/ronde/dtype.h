// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ronde {

/// Element types a collective can move. The values travel between ranks and through the C API:
/// never renumber them.
enum class DataType : std::uint8_t {
  U8 = 0,
  I8 = 1,
  I16 = 2,
  I32 = 3,
  I64 = 4,
  F16 = 5,   ///< IEEE 754 binary16
  BF16 = 6,  ///< the upper half of a binary32
  F32 = 7,
  F64 = 8,
  Bool = 9,  ///< one byte, zero is false
  U16 = 10,
  U32 = 11,
  U64 = 12,
  C64 = 13,   ///< complex: the real and the imaginary part, each an F32
  C128 = 14,  ///< the same of F64
};

/// The number of values of DataType, and all of them.
/// @{
inline constexpr std::size_t kDataTypeCount = 15;

inline constexpr std::array<DataType, kDataTypeCount> kAllDataTypes = {
    DataType::U8,  DataType::I8,   DataType::I16, DataType::I32, DataType::I64,
    DataType::F16, DataType::BF16, DataType::F32, DataType::F64, DataType::Bool,
    DataType::U16, DataType::U32,  DataType::U64, DataType::C64, DataType::C128};
/// @}

/// Returns the bytes of one element.
constexpr std::size_t size_of(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::U8:
    case DataType::I8:
    case DataType::Bool:
      return 1;
    case DataType::I16:
    case DataType::U16:
    case DataType::F16:
    case DataType::BF16:
      return 2;
    case DataType::I32:
    case DataType::U32:
    case DataType::F32:
      return 4;
    case DataType::I64:
    case DataType::U64:
    case DataType::F64:
    case DataType::C64:
      return 8;
    case DataType::C128:
      return 16;
  }
  return 0;
}

/// Returns whether it is F16 or BF16.
constexpr bool is_half(DataType dtype) noexcept {
  return dtype == DataType::F16 || dtype == DataType::BF16;
}

/// Returns whether it is F16, BF16, F32 or F64.
constexpr bool is_floating(DataType dtype) noexcept {
  return is_half(dtype) || dtype == DataType::F32 || dtype == DataType::F64;
}

/// Returns whether it is an integer, signed or not.
constexpr bool is_integer(DataType dtype) noexcept {
  return dtype <= DataType::I64 || (dtype >= DataType::U16 && dtype <= DataType::U64);
}

/// Returns whether it is C64 or C128.
constexpr bool is_complex(DataType dtype) noexcept {
  return dtype == DataType::C64 || dtype == DataType::C128;
}

/// Returns the type of the parts of a complex number; of others the type itself.
constexpr DataType real_type(DataType dtype) noexcept {
  if (!is_complex(dtype)) return dtype;
  return dtype == DataType::C64 ? DataType::F32 : DataType::F64;
}

/// "f32", "bool", ...
std::string_view to_string(DataType dtype) noexcept;

}  // namespace ronde

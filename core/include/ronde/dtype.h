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
};

/// The number of values of DataType, and all of them.
/// @{
inline constexpr std::size_t kDataTypeCount = 10;

inline constexpr std::array<DataType, kDataTypeCount> kAllDataTypes = {
    DataType::U8,  DataType::I8,   DataType::I16, DataType::I32, DataType::I64,
    DataType::F16, DataType::BF16, DataType::F32, DataType::F64, DataType::Bool};
/// @}

/// Returns the bytes of one element.
constexpr std::size_t size_of(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::U8:
    case DataType::I8:
    case DataType::Bool:
      return 1;
    case DataType::I16:
    case DataType::F16:
    case DataType::BF16:
      return 2;
    case DataType::I32:
    case DataType::F32:
      return 4;
    case DataType::I64:
    case DataType::F64:
      return 8;
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

/// Returns whether it is U8, I8, I16, I32 or I64.
constexpr bool is_integer(DataType dtype) noexcept {
  return dtype <= DataType::I64;
}

/// "f32", "bool", ...
std::string_view to_string(DataType dtype) noexcept;

}  // namespace ronde

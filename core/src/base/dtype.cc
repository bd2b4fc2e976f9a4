// SPDX-License-Identifier: Apache-2.0
#include "ronde/dtype.h"

#include "core/src/base/enum_name.h"

namespace ronde {

std::string_view to_string(DataType dtype) noexcept {
  constexpr std::array<std::string_view, kDataTypeCount> kNames = {
      "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "bool"};
  return enum_name(kNames, dtype, "unknown dtype");
}

}  // namespace ronde

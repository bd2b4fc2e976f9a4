// SPDX-License-Identifier: Apache-2.0
#include "ronde/dtype.h"

namespace ronde {

std::string_view to_string(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::U8:
      return "u8";
    case DataType::I8:
      return "i8";
    case DataType::I16:
      return "i16";
    case DataType::I32:
      return "i32";
    case DataType::I64:
      return "i64";
    case DataType::F16:
      return "f16";
    case DataType::BF16:
      return "bf16";
    case DataType::F32:
      return "f32";
    case DataType::F64:
      return "f64";
    case DataType::Bool:
      return "bool";
  }
  return "unknown dtype";
}

}  // namespace ronde

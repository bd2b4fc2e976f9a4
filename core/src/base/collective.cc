// SPDX-License-Identifier: Apache-2.0
#include "ronde/collective.h"

#include "core/src/base/text.h"
#include "ronde/dtype.h"

namespace ronde {

std::string_view to_string(Collective kind) noexcept {
  constexpr std::array<std::string_view, kCollectiveCount> kNames = {
      "allreduce",     "broadcast", "allgather", "barrier", "alltoall",
      "reducescatter", "send",      "recv",      "join",    "reduce"};
  return enum_name(kNames, kind, "unknown collective");
}

std::string_view to_string(ReduceOp op) noexcept {
  constexpr std::array<std::string_view, kReduceOpCount> kNames = {
      "sum", "average", "min", "max", "product", "adasum", "bit_and", "bit_or", "bit_xor"};
  return enum_name(kNames, op, "unknown op");
}

std::string_view to_string(DeviceKind kind) noexcept {
  constexpr std::array<std::string_view, 2> kNames = {"cpu", "cuda"};
  return enum_name(kNames, kind, "unknown device");
}

std::string_view to_string(DataType dtype) noexcept {
  constexpr std::array<std::string_view, kDataTypeCount> kNames = {
      "u8",  "i8",   "i16", "i32", "i64", "f16", "bf16", "f32",
      "f64", "bool", "u16", "u32", "u64", "c64", "c128"};
  return enum_name(kNames, dtype, "unknown dtype");
}

}  // namespace ronde

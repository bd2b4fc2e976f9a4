// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ronde {

/// The operations of ranks. The values travel between ranks: never renumber them.
enum class Collective : std::uint8_t {
  Allreduce = 0,
  Broadcast = 1,
  Allgather = 2,
  Barrier = 3,
  Alltoall = 4,
  Reducescatter = 5,
  Send = 6,
  Recv = 7,
  Join = 8,
  Reduce = 9,
};

/// The number of values of Collective.
inline constexpr std::size_t kCollectiveCount = 10;

/// Returns whether it is a message between two ranks, in which the others take no part.
constexpr bool is_point_to_point(Collective kind) noexcept {
  return kind == Collective::Send || kind == Collective::Recv;
}

/// Combines elements in a reduction. Integer sums and products wrap, and an average of integers is
/// that of the exact sum, truncated toward zero; on bool, Sum is "or", Product is "and" and Average
/// is refused; Min and Max propagate NaN. Complex numbers are combined by their real and imaginary
/// parts, by Sum, Average and Adasum alone. Adasum, for floating-point allreduces only, combines
/// whole tensors (core/src/run/adasum.h). BitAnd, BitOr and BitXor are for integers and bools, in
/// host memory. The values travel between ranks and through the C API: never renumber them.
enum class ReduceOp : std::uint8_t {
  Sum = 0,
  Average = 1,
  Min = 2,
  Max = 3,
  Product = 4,
  Adasum = 5,
  BitAnd = 6,
  BitOr = 7,
  BitXor = 8,
};

/// The number of values of ReduceOp.
inline constexpr std::size_t kReduceOpCount = 9;

/// The operations on each element alone that real numbers of all types have, but for Average of
/// bools. The bitwise ones are elementwise too.
inline constexpr std::array<ReduceOp, 5> kElementwiseOps = {
    ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product};

/// Returns whether it works on each element alone.
constexpr bool is_elementwise(ReduceOp op) noexcept {
  return op != ReduceOp::Adasum;
}

/// Returns whether it is BitAnd, BitOr or BitXor.
constexpr bool is_bitwise(ReduceOp op) noexcept {
  return op == ReduceOp::BitAnd || op == ReduceOp::BitOr || op == ReduceOp::BitXor;
}

/// The place of a buffer. The values travel between ranks: never renumber them.
enum class DeviceKind : std::uint8_t { Cpu = 0, Cuda = 1 };

/// A device of this process: its kind and, for GPUs, the ordinal.
struct Device {
  DeviceKind kind = DeviceKind::Cpu;
  int index = 0;

  /// Equal kind and ordinal.
  friend bool operator==(const Device&, const Device&) = default;
};

/// "allreduce", "broadcast", ..., "send", "recv"
std::string_view to_string(Collective kind) noexcept;
/// "sum", "average", ...
std::string_view to_string(ReduceOp op) noexcept;
/// "cpu", "cuda"
std::string_view to_string(DeviceKind kind) noexcept;

}  // namespace ronde

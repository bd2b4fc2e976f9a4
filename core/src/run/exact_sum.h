// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ronde/plugin/backend.h"

namespace ronde {

// Note [Exact sums]
// An average of integers, or a sum with factors, is that of the exact sum, which needs more bits
// than an element has. So elements travel as words of 64 bits, as plain sums of i64, whose
// additions wrap on every backend alike but cannot here: an element of up to 32 bits is one word,
// one of 64 bits is two, its upper half with the sign and its lower half without. Sums of these are
// exact for 2^31 ranks. Each rank makes its result of the sums: an average by a division of
// integers, a sum with factors in f64. It is truncated toward zero, and what leaves the range of
// the type is clamped.
//
// Exact sums always run on the CPU's backend: they are rare, and so no backend and no kernel has to
// scale integers. A reducescatter is an allreduce of which a rank keeps its own part.

/// Returns the number of words of 64 bits as which an element travels.
constexpr std::size_t words_of(DataType dtype) noexcept {
  return size_of(dtype) == sizeof(std::int64_t) ? 2 : 1;
}

/// Starts a sum of integers with scales, on a backend of the CPU for plain segment lists. `device`:
/// that of the buffers; null if they are on the CPU. A segment without an output is not written.
std::unique_ptr<Operation> exact_sum(Backend& host, std::shared_ptr<DeviceStreams> device,
                                     const AllreduceCall& call);

}  // namespace ronde

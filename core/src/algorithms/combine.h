// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstring>

#include "ronde/kernels.h"

namespace ronde {

/// `bytes` of elements: `output` = first op second. It may be either of them.
inline void combine(std::byte* output, const std::byte* first, const std::byte* second,
                    std::size_t bytes, const Reduction& reduction) {
  if (bytes == 0) return;
  const std::array<const void*, 2> inputs = {first, second};
  best_kernels().reduce(output, inputs, bytes / size_of(reduction.dtype), reduction,
                        Store::Regular);
}

/// `bytes` from one memory to another, which may be the same.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/src/op/op_spec.h"

namespace ronde {

/// One agreed operation. The planner ignores the shape, which may differ between ranks.
struct PlanItem {
  SpecPtr spec;
  std::uint64_t bytes = 0;  ///< size of the data as the backend moves it
  int average_over = 0;     ///< Response::average_over
};

/// Groups operations into buckets, each executed by one call of a backend: lists of indexes into
/// `items`. Only allreduces and broadcasts that agree in all but shape share a bucket, as many in a
/// row as fit into `limit_bytes`; the planner looks ahead over operations that do not match. One
/// larger than the limit gets a bucket of its own (the backend streams it in chunks). Zero turns
/// fusion off. Symmetric buffers get buckets of a few MiB. Buckets are ordered by their first
/// operation, operations in a bucket as in `items`: a pure function of its arguments, so that all
/// ranks plan alike.
std::vector<std::vector<std::size_t>> plan_fusion(std::span<const PlanItem> items,
                                                  std::uint64_t limit_bytes);

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/src/submit/request_meta.h"

namespace ronde {

// The first dimension of a tensor, divided among ranks.

/// Rows of every rank after a reducescatter: as even as can be, the first ranks have one more.
std::vector<std::int64_t> scattered_rows(std::int64_t rows, int size);

/// Checks the splits of an alltoall among `size` ranks. Assumes a checked shape (see shape_error).
Problem splits_error(const RequestMeta& meta, int size);

/// The first dimensions of all ranks, where they may differ.
struct RankRows {
  std::vector<std::int64_t> first_dims;  ///< by rank; of allgather and alltoall
  std::vector<std::vector<std::int64_t>> splits =
      {};                              ///< by rank, as given; empty: all divide evenly
  std::vector<RankRows> members = {};  ///< of a group

  /// Alltoall: rows from one rank to another.
  std::int64_t sent(std::size_t from, std::size_t to) const;

  friend bool operator==(const RankRows&, const RankRows&) = default;
};

/// Their sum; more than 2^63 - 1 counts as that many.
std::int64_t total_rows(const std::vector<std::int64_t>& rows) noexcept;

}  // namespace ronde

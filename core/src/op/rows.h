// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/src/op/op_spec.h"

namespace ronde {

// The first dimension of a tensor, divided among ranks.

/// Rows of every rank after a reducescatter: as even as can be, the first ranks have one more.
std::vector<std::int64_t> scattered_rows(std::int64_t rows, int size);

// Note [Rows of an alltoall]
// Without splits every rank knows what all send, as the first dimensions are agreed on. With them a
// matrix of all ranks' splits would take 8 MB of each decision for 1000 ranks, and splits that
// change would be agreed on anew each time. So the ranks agree that there are splits, and each
// checks its own. The rows go with the data: the executor starts a small alltoall on the backend
// of the CPU (RowExchange), allocates the result, and then starts the alltoall of the data.

/// Checks the splits of an alltoall among `size` ranks. Assumes a checked shape (see shape_error).
Problem splits_error(const OpSpec& spec, int size);

/// Takes splits that are right, and the rows, out of what the ranks compare.
void leave_out_rows(OpSpec& spec, int size);

/// In RankRows: the rank gave splits.
inline constexpr std::int64_t kHasSplits = -1;

/// The first dimensions of all ranks, where they may differ.
struct RankRows {
  std::vector<std::int64_t> first_dims;  ///< by rank; of allgather and alltoall; or kHasSplits
  std::vector<RankRows> members = {};    ///< of a group

  bool empty() const;
  /// Some rank gave splits: no rank knows yet what it receives.
  bool has_splits() const;

  friend bool operator==(const RankRows&, const RankRows&) = default;
};

/// Their sum; more than 2^63 - 1 counts as that many.
std::int64_t total_rows(const std::vector<std::int64_t>& rows) noexcept;

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ronde/plugin/calls.h"

namespace ronde {

/// What the ranks tell each other before the data of an alltoall with splits: Note [Rows of an
/// alltoall] in rows.h. A rank tells each one its rows for it, and the most that it has for any, so
/// that all know the AlltoallCall::largest_count.
class RowExchange {
 public:
  /// `sent_rows`: to each rank. `moved`: a type that the backend moves, as bytes.
  RowExchange(const std::vector<std::int64_t>& sent_rows, DataType moved);

  /// The small alltoall. Valid for as long as this.
  AlltoallCall call();

  /// Once that has ended. Throws ronde::Error if it brought nonsense.
  /// @{
  std::vector<std::int64_t> received_rows() const;
  std::int64_t most_rows() const;  ///< from any rank to any; equal on all ranks
                                   /// @}

 private:
  struct Word {
    std::int64_t rows = 0;
    std::int64_t most = 0;
  };

  const DataType moved_;
  std::vector<Word> sent_;
  std::vector<Word> received_;
  const std::vector<std::size_t> counts_;
};

}  // namespace ronde

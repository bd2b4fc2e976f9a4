// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/src/base/monotonic_clock.h"
#include "core/src/op/submission.h"
#include "ronde/plugin/backend.h"
#include "ronde/plugin/calls.h"

namespace ronde {

/// The exchange of rows before the data of an alltoall with splits: Note [Rows of an alltoall] in
/// op_spec.h. A rank sends each one its rows for it, and the most that it has for any, so that all
/// know the AlltoallCall::largest_count.
class RowExchange {
 public:
  /// `sent_rows`: to each rank. `moved`: a type that the backend moves, as bytes.
  RowExchange(const std::vector<std::int64_t>& sent_rows, DataType moved);

  /// Returns the small alltoall, valid for as long as this object.
  AlltoallCall call();

  /// Return what it brought, once it has ended. Throw ronde::Error if that is nonsense.
  /// @{
  std::vector<std::int64_t> received_rows() const;
  /// The most from any rank to any; equal on all ranks.
  std::int64_t most_rows() const { return std::ranges::max(received_, {}, &Word::most).most; }
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

/// The backends of a process set. Those of devices are first, as they are built on that of the CPU.
using Backends = std::map<DeviceKind, std::unique_ptr<Backend>, std::greater<>>;

/// Operations that one call of a backend runs, and the memory that the call points to.
struct Bucket {
  std::vector<Submission> items;
  std::vector<Segment> segments;
  std::vector<std::size_t> counts;             ///< elements of every rank; alltoall: to every rank
  std::vector<std::size_t> receive_counts;     ///< alltoall: elements from every rank
  std::vector<std::vector<std::byte>> copies;  ///< of inputs: see Results
  std::vector<std::shared_ptr<const DeviceEvent>> after;  ///< on a device
  std::exception_ptr error;  ///< no memory for the result, or for a copy
  /// Alltoall with splits: not null while `operation` exchanges the rows.
  std::unique_ptr<RowExchange> rows;
  std::unique_ptr<Operation> operation;
  TimePoint started;
  std::uint64_t number = 0;  ///< Event::bucket

  /// The spec of the items, which differ in the shape alone.
  const OpSpec& spec() const { return items.front().spec(); }
};

}  // namespace ronde

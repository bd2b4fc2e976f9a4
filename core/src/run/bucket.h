// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/src/op/submission.h"
#include "core/src/run/row_exchange.h"
#include "ronde/plugin/backend.h"

namespace ronde {

/// Those of devices are first, as they are built on that of the CPU.
using Backends = std::map<DeviceKind, std::unique_ptr<Backend>, std::greater<>>;

/// Operations that one call of a backend runs, and what that call points to.
struct Bucket {
  std::vector<Submission> items;
  std::vector<Segment> segments;
  std::vector<std::size_t> counts;          ///< elements of every rank; alltoall: to every rank
  std::vector<std::size_t> receive_counts;  ///< alltoall: elements from every rank
  std::vector<std::byte> input;             ///< a copy, where the result would overwrite it
  std::vector<std::shared_ptr<const DeviceEvent>> after;  ///< on a device
  std::exception_ptr error;  ///< no memory for the result, or for `input`
  /// Alltoall with splits: while `operation` is that of it.
  std::unique_ptr<RowExchange> rows;
  std::unique_ptr<Operation> operation;
  std::chrono::steady_clock::time_point started;
  std::uint64_t number = 0;  ///< Event::bucket

  /// Equal in all of them but for the shape.
  const OpSpec& spec() const { return items.front().spec(); }
};

}  // namespace ronde

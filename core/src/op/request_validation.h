// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/src/op/op_spec.h"
#include "core/src/op/set_info.h"
#include "ronde/persistent.h"
#include "ronde/request.h"
#include "ronde/symmetric_heap.h"

namespace ronde {

/// "allreduce 'x'", or "allreduce" if it has no name that can be shown.
std::string shown(const Request& request);

/// Throws UsageError for errors that this rank alone can see, but for those of what each start of a
/// persistent operation brings. `rank`, `size`: within the process set.
void check_request(const Request& request, int rank, int size);

/// Checks that, of an operation with this spec and an input of so many bytes: buffers, and whether
/// the rank may contribute nothing.
void check_start(const Start& start, const OpSpec& spec, std::uint64_t input_bytes, int rank);

/// The same for a group as a whole.
void check_group(const std::vector<Request>& requests);

/// Bytes that rank `rank` of `size` certainly has to write at its output: of an allgather or
/// alltoall, what it gets from itself, as the rest is not known yet. Of a checked request.
std::uint64_t written_bytes(const Request& request, int rank, int size);

/// Of its input; any number if the shape is one that the ranks refuse.
std::uint64_t input_bytes(const Request& request);

/// The OpSpec::symmetric_place of a start that shall be symmetric; 0 if it need not be. Throws
/// UsageError if it cannot be. `heap`: null if there is none.
std::uint64_t symmetric_place(const Start& start, const OpSpec& spec, const SymmetricHeap* heap);

/// Checks what all ranks of the set agree on. Members of groups are checked one by one.
Problem agreed_error(const SetInfo& set, const OpSpec& spec);

}  // namespace ronde

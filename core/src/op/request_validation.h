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

/// Throws UsageError for errors that this rank alone can see, except those of the fields of Start.
/// `rank`, `size`: within the process set.
void check_request(const Request& request, int rank, int size);

/// Checks the fields of Start for an operation with this spec and an input of `input_bytes`: the
/// buffers, and whether the rank may contribute nothing. Throws UsageError.
void check_start(const Start& start, const OpSpec& spec, std::uint64_t input_bytes, int rank);

/// Checks a group as a whole. Throws UsageError.
void check_group(const std::vector<Request>& requests);

/// Returns the bytes that rank `rank` of `size` certainly writes at its output: for an allgather or
/// alltoall those that it gets from itself, as the rest is not known yet. Assumes a checked
/// request.
std::uint64_t written_bytes(const Request& request, int rank, int size);

/// Returns the bytes of its input; any number for a shape that the ranks refuse.
std::uint64_t input_bytes(const Request& request);

/// Returns the OpSpec::symmetric_place of a start that shall be symmetric; 0 if it need not be.
/// Throws UsageError if it cannot be. `heap`: null if there is none.
std::uint64_t symmetric_place(const Start& start, const OpSpec& spec, const SymmetricHeap* heap);

/// Checks a spec that all ranks of the set agree on. Members of groups are checked one by one.
Problem agreed_error(const SetInfo& set, const OpSpec& spec);

}  // namespace ronde

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/src/submit/request_meta.h"
#include "core/src/submit/set_info.h"
#include "ronde/request.h"
#include "ronde/symmetric_heap.h"

namespace ronde {

/// "allreduce 'x'", or "allreduce" if it has no name that can be shown.
std::string shown(const Request& request);

/// Throws UsageError for errors that this rank alone can see. `rank`, `size`: within the process
/// set.
void check_request(const Request& request, int rank, int size);

/// The same for a group as a whole.
void check_group(const std::vector<Request>& requests);

/// The RequestMeta::symmetric_place of the request; 0 if it is not symmetric. Throws UsageError if
/// it cannot be symmetric. `heap`: null if there is none.
std::uint64_t symmetric_place(const Request& request, const SymmetricHeap* heap);

/// Checks what all ranks of the set agree on. Members of groups are checked one by one.
Problem agreed_error(const SetInfo& set, const RequestMeta& meta);

}  // namespace ronde

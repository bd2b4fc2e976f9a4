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

/// Throws UsageError for what this rank alone can see to be wrong. `rank`, `size`: within the
/// process set.
void check_request(const Request& request, int rank, int size);

/// The same for a group as a whole.
void check_group(const std::vector<Request>& requests);

/// What tells where a symmetric buffer is (RequestMeta::symmetric_place); 0 for another one. Throws
/// UsageError where it cannot be symmetric. `heap`: null if there is none.
std::uint64_t symmetric_place(const Request& request, const SymmetricHeap* heap);

/// Why no rank of the set may run what all its ranks agree on, or empty. Members of groups are
/// looked at one by one.
std::string agreed_error(const SetInfo& set, const RequestMeta& meta);

}  // namespace ronde
